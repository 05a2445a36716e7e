"""`job inspect` and `job history`: what a job is, word for word, and what it was."""

from itertools import zip_longest

import click
import msgspec

from daemon.cli import resolve
from daemon.cli.answers import JobLine, Versions
from daemon.cli.client import Client, Value, decode, segment
from daemon.cli.differences import lines
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.text import moment
from storage.errors import NotFound
from storage.records.job import Job

_VERSION = click.option("--version", type=int, metavar="N", help="Only that version.")


@click.command()
@click.argument("job_id", metavar="JOB")
@_VERSION
@shown
@connected
def inspect(client: Client, screen: Screen, job_id: str, *, version: int | None) -> None:
    """Print the definition of JOB in the form that "job run" takes.

    Example: steward inspect -version 3 web
    """
    line = resolve.job(client, job_id)
    if version is None:
        body = client.read(f"/v1/job/{segment(line.id)}", namespace=line.namespace).body
    else:
        body = _only(_bodies(_versions(client, line)), line, version)
    screen.document(msgspec.json.encode({"Job": msgspec.Raw(body)}))


@click.command()
@click.argument("job_id", metavar="JOB")
@_VERSION
@click.option("--full", is_flag=True, help="Print the definitions, too.")
@click.option("-p", "with_diffs", is_flag=True, help="Show what each version changed.")
@click.option("--diff-version", type=int, metavar="N", help="Show how each differs from N.")
@click.option("--diff-tag", default="", metavar="NAME", help="Show how each differs from that one.")
@shown
@connected
def history(
    client: Client,
    screen: Screen,
    job_id: str,
    *,
    version: int | None,
    full: bool,
    with_diffs: bool,
    diff_version: int | None,
    diff_tag: str,
) -> None:
    """List the versions of JOB, newest first.

    Example: steward job history -p web
    """
    line = resolve.job(client, job_id)
    base: dict[str, Value] = {"diff_tag": diff_tag}
    if diff_version is not None:
        base["diff_version"] = diff_version
    if with_diffs or diff_tag or diff_version is not None:
        _show_diffs(screen, _versions(client, line, diffs=True, **base), line, version)
        return
    bodies = _bodies(_versions(client, line))
    if version is not None:
        bodies = [_only(bodies, line, version)]
    if screen.wants_document or full:
        shown = [msgspec.Raw(body) for body in bodies]
        screen.document(msgspec.json.encode(shown))
        return
    screen.table(_HEADER, [_row(decode(body, Job)) for body in bodies])
    screen.hint(f"See one whole with: steward job inspect -version N {line.id}")


_HEADER = ["Version", "Stable", "Stopped", "Tag", "Submit Date"]


def _show_diffs(screen: Screen, found: Versions, line: JobLine, only: int | None) -> None:
    """Print versions, each with what it changed."""
    bodies = _bodies(found)
    diffs = found.diffs or []
    if only is not None:
        body = _only(bodies, line, only)
        diffs = diffs[bodies.index(body) :][:1]
        bodies = [body]
    if screen.wants_document:
        screen.document(msgspec.json.encode(diffs))
        return
    for body, diff in zip_longest(bodies, diffs):
        screen.facts(list(zip(_HEADER, _row(decode(body, Job)), strict=True)))
        for fate, words in lines(diff, verbose=screen.verbose) if diff else ():
            screen.changed(fate, words)
        screen.line()


def _row(job: Job) -> list[str]:
    tag = job.version_tag.name if job.version_tag else ""
    stable, stopped = str(job.stable).lower(), str(job.stop).lower()
    return [str(job.version), stable, stopped, tag, moment(job.submit_time)]


def _versions(client: Client, line: JobLine, **query: Value) -> Versions:
    path = f"/v1/job/{segment(line.id)}/versions"
    return client.fetch(path, Versions, namespace=line.namespace, **query)


def _bodies(found: Versions) -> list[bytes]:
    return [bytes(body) for body in found.versions]


def _only(bodies: list[bytes], line: JobLine, version: int) -> bytes:
    """Return one version. Raises `NotFound`, which names those that there are."""
    by_number = {decode(body, Job).version: body for body in bodies}
    if version not in by_number:
        known = ", ".join(map(str, sorted(by_number)))
        raise NotFound(f'job "{line.id}" has no version {version}, only: {known}')
    return by_number[version]
