"""`job revert` and `job tag`: go back to a version of a job, and name versions."""

import click

from daemon.cli import resolve
from daemon.cli.answers import JobLine, Versions
from daemon.cli.change import DETACH, followed
from daemon.cli.client import Client, decode, segment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from storage.errors import NotFound
from storage.records.job import Job

_NAME = click.option("--name", required=True, help="How the version is called.")


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("version")
@click.option("--check-version", type=int, metavar="N", help="Refuse if N is not the newest now.")
@DETACH
@shown
@connected
def revert(
    client: Client,
    screen: Screen,
    job_id: str,
    version: str,
    *,
    check_version: int | None,
    detach: bool,
) -> int:
    """Make VERSION of JOB, a number or a name, the newest version, and follow it.

    Example: steward job revert web 3
    """
    line = resolve.job(client, job_id)
    number = int(version) if version.isdecimal() else _tagged(client, line, version)
    body: dict[str, object] = {"JobID": line.id, "JobVersion": number}
    if check_version is not None:
        body["EnforcePriorVersion"] = check_version
    answer = client.send("POST", f"{_path(line)}/revert", body, namespace=line.namespace)
    return followed(client, screen, answer, line.id, detach=detach)


def _tagged(client: Client, line: JobLine, name: str) -> int:
    """Return the version that has a name. Raises `NotFound`, which lists the names that there are."""
    found = client.fetch(f"{_path(line)}/versions", Versions, namespace=line.namespace)
    jobs = [decode(bytes(one), Job) for one in found.versions]
    known = {job.version_tag.name: job.version for job in jobs if job.version_tag}
    if name not in known:
        listed = ", ".join(sorted(known)) or "none has a name"
        raise NotFound(f'job "{line.id}" has no version called {name!r}; there are: {listed}')
    return known[name]


@click.command("apply")
@click.argument("job_id", metavar="JOB")
@_NAME
@click.option("--version", type=int, metavar="N", help="Which version [default: the newest].")
@click.option("--description", default="", metavar="TEXT", help="What to know about it.")
@shown
@connected
def tag(
    client: Client,
    screen: Screen,
    job_id: str,
    *,
    name: str,
    version: int | None,
    description: str,
) -> None:
    """Give a version of JOB a name.

    Example: steward job tag apply -name good -version 3 web
    """
    line = resolve.job(client, job_id)
    which = {"Latest": True} if version is None else {"Version": version}
    answer = client.send(
        "POST",
        _tag_path(line, name),
        {**which, "Description": description},
        namespace=line.namespace,
    )
    newest = "the newest version" if version is None else f"version {version}"
    screen.told(f'job "{line.id}": {newest} is called "{name}"', answer.body)


@click.command("unset")
@click.argument("job_id", metavar="JOB")
@_NAME
@shown
@connected
def untag(client: Client, screen: Screen, job_id: str, *, name: str) -> None:
    """Take a name from the version of JOB that has it.

    Example: steward job tag unset -name good web
    """
    line = resolve.job(client, job_id)
    answer = client.send("DELETE", _tag_path(line, name), namespace=line.namespace)
    screen.told(f'job "{line.id}": no version is called "{name}" any more', answer.body)


def _path(line: JobLine) -> str:
    return f"/v1/job/{segment(line.id)}"


def _tag_path(line: JobLine, name: str) -> str:
    return f"{_path(line)}/versions/{segment(name)}/tag"
