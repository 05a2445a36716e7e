"""`job revert` and `job tag`: revert a job to an older version, and name versions."""

import click

from daemon.cli.commands.job_actions import DETACH, followed
from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient, decode, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import JobListItem, JobVersionsResult
from storage.errors import NotFound
from storage.records.job import Job

_NAME = click.option("--name", required=True, help="Name of the version.")


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("version")
@click.option(
    "--check-version", type=Integer(0), metavar="N", help="Fail unless N is the latest version."
)
@DETACH
@with_output
@with_client
def revert(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    version: str,
    *,
    check_version: int | None,
    detach: bool,
) -> int:
    """Make VERSION of JOB (a number or a name) the latest version, and wait until it runs.

    Example: steward job revert web 3
    """
    line = resolve.job(client, job_id)
    number = int(version) if version.isdecimal() else _tagged(client, line, version)
    body: dict[str, object] = {"JobID": line.id, "JobVersion": number}
    if check_version is not None:
        body["EnforcePriorVersion"] = check_version
    answer = client.send("POST", f"{_path(line)}/revert", body, namespace=line.namespace)
    return followed(client, screen, answer, line.id, detach=detach)


def _tagged(client: ApiClient, line: JobListItem, name: str) -> int:
    """Return the version with this name. Raises `NotFound`, whose message lists the names."""
    versions = client.fetch(f"{_path(line)}/versions", JobVersionsResult, namespace=line.namespace)
    jobs = [decode(bytes(version), Job) for version in versions.versions]
    version_by_name = {job.version_tag.name: job.version for job in jobs if job.version_tag}
    if name not in version_by_name:
        listed = ", ".join(sorted(version_by_name))
        rest = (
            f"its version names are: {listed}"
            if version_by_name
            else "none of its versions has a name"
        )
        raise NotFound(f'job "{line.id}" has no version named {name!r}; {rest}')
    return version_by_name[name]


@click.command("apply")
@click.argument("job_id", metavar="JOB")
@_NAME
@click.option(
    "--version", type=Integer(0), metavar="N", help="Number of the version [default: the latest]."
)
@click.option("--description", default="", metavar="TEXT", help="Description of the version.")
@with_output
@with_client
def tag(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    *,
    name: str,
    version: int | None,
    description: str,
) -> None:
    """Name a version of JOB.

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
    newest = "the latest version" if version is None else f"version {version}"
    screen.report(f'job "{line.id}": {newest} is named "{name}"', answer.body)


@click.command("unset")
@click.argument("job_id", metavar="JOB")
@_NAME
@with_output
@with_client
def untag(client: ApiClient, screen: Screen, job_id: str, *, name: str) -> None:
    """Remove the name of a version of JOB.

    Example: steward job tag unset -name good web
    """
    line = resolve.job(client, job_id)
    answer = client.send("DELETE", _tag_path(line, name), namespace=line.namespace)
    screen.report(f'job "{line.id}": no version is named "{name}" now', answer.body)


def _path(line: JobListItem) -> str:
    return f"/v1/job/{segment(line.id)}"


def _tag_path(line: JobListItem, name: str) -> str:
    return f"{_path(line)}/versions/{segment(name)}/tag"
