"""`job inspect` and `job history`: the definition of a job, and its earlier versions."""

from itertools import zip_longest

import click
import msgspec

from daemon.cli.core import resolve
from daemon.cli.core.diff import diff_lines
from daemon.cli.core.formatting import format_time
from daemon.cli.core.http_client import ApiClient, Value, decode, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import JobDefinitionResult, JobListItem, JobVersionsResult
from storage.errors import Invalid, NotFound
from storage.records.job import Job

_VERSION = click.option("--version", type=Integer(0), metavar="N", help="Only this version.")


@click.command()
@click.argument("job_id", metavar="JOB")
@_VERSION
@click.option(
    "--hcl", "as_hcl", is_flag=True, help="Print the submitted job file, or an equivalent job file."
)
@with_output
@with_client
def inspect(
    client: ApiClient, screen: Screen, job_id: str, *, version: int | None, as_hcl: bool
) -> None:
    """Print the definition of JOB in the form that "job run" accepts.

    Example: steward inspect -version 3 web
    """
    line = resolve.job(client, job_id)
    if as_hcl:
        screen.value(_job_file(client, line, version).removesuffix("\n"))
        return
    if version is None:
        body = client.read(f"/v1/job/{segment(line.id)}", namespace=line.namespace).body
    else:
        body = _select_version(_bodies(_versions(client, line)), line, version)
    screen.document(msgspec.json.encode({"Job": msgspec.Raw(body)}))


@click.command()
@click.argument("job_id", metavar="JOB")
@_VERSION
@click.option("--full", is_flag=True, help="Also print the definitions.")
@click.option("-p", "with_diffs", is_flag=True, help="Show the changes of each version.")
@click.option(
    "--diff-version", type=Integer(0), metavar="N", help="Show the differences to version N."
)
@click.option("--diff-tag", default="", metavar="NAME", help="Show the differences to this tag.")
@with_output
@with_client
def history(
    client: ApiClient,
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
        bodies = [_select_version(bodies, line, version)]
    if screen.wants_document or full:
        documents = [msgspec.Raw(body) for body in bodies]
        screen.document(msgspec.json.encode(documents))
        return
    screen.table(_HEADER, [_row(decode(body, Job)) for body in bodies])
    screen.hint(f"See a complete version with: steward job inspect -version N {line.id}")


def _job_file(client: ApiClient, line: JobListItem, version: int | None) -> str:
    """Return a version as a job file. Raises `Invalid` if only JSON can express it."""
    path = f"/v1/job/{segment(line.id)}/definition"
    query: dict[str, Value] = {} if version is None else {"version": version}
    definition = client.fetch(path, JobDefinitionResult, namespace=line.namespace, **query)
    if definition.format == "json":
        # A job submitted as JSON can often be expressed in HCL.
        definition = client.fetch(
            path, JobDefinitionResult, namespace=line.namespace, written=True, **query
        )
    if definition.format == "json":
        raise Invalid(
            f'version {definition.version} of job "{line.id}" cannot be written as HCL: '
            f"leave out -hcl to get it as JSON"
        )
    return definition.source


_HEADER = ["Version", "Stable", "Stopped", "Tag", "Submit Date"]


def _show_diffs(
    screen: Screen, job_versions_result: JobVersionsResult, line: JobListItem, only: int | None
) -> None:
    """Print versions, each with its changes."""
    bodies = _bodies(job_versions_result)
    diffs = job_versions_result.diffs or []
    if only is not None:
        body = _select_version(bodies, line, only)
        diffs = diffs[bodies.index(body) :][:1]
        bodies = [body]
    if screen.wants_document:
        screen.document(msgspec.json.encode(diffs))
        return
    for body, diff in zip_longest(bodies, diffs):
        screen.facts(list(zip(_HEADER, _row(decode(body, Job)), strict=True)))
        for diff_type, words in diff_lines(diff, verbose=screen.verbose) if diff else ():
            screen.changed(diff_type, words)
        screen.line()


def _row(job: Job) -> list[str]:
    tag = job.version_tag.name if job.version_tag else ""
    stable, stopped = str(job.stable).lower(), str(job.stop).lower()
    return [str(job.version), stable, stopped, tag, format_time(job.submit_time)]


def _versions(client: ApiClient, line: JobListItem, **query: Value) -> JobVersionsResult:
    path = f"/v1/job/{segment(line.id)}/versions"
    return client.fetch(path, JobVersionsResult, namespace=line.namespace, **query)


def _bodies(job_versions_result: JobVersionsResult) -> list[bytes]:
    return [bytes(body) for body in job_versions_result.versions]


def _select_version(bodies: list[bytes], line: JobListItem, version: int) -> bytes:
    """Return the version with this number. Raises `NotFound`, which lists the known numbers."""
    by_number = {decode(body, Job).version: body for body in bodies}
    if version not in by_number:
        numbers = ", ".join(map(str, sorted(by_number)))
        raise NotFound(f'job "{line.id}" has no version {version}, only: {numbers}')
    return by_number[version]
