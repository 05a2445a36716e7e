"""`deployment …` and the deployment commands of `job`: list, watch, promote and fail deployments."""

from collections.abc import Sequence

import click

from daemon.cli.commands.job_actions import DETACH
from daemon.cli.commands.run import EXIT_INTERRUPTED
from daemon.cli.core import resolve
from daemon.cli.core.follow import follow_deployment
from daemon.cli.core.formatting import format_api_time
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import DeploymentActionResult, JobListItem
from storage.errors import NotFound
from storage.records.deployment import Deployment

_GROUP = click.option("--group", "groups", multiple=True, help="Only this group; repeatable.")


@click.command("list")
@click.option("--filter", "expression", default="", help="Filter expression over deployments.")
@with_output
@with_client
def index(client: ApiClient, screen: Screen, *, expression: str) -> None:
    """List the deployments, newest last.

    Example: steward deployment list -filter 'Status == "running"'
    """
    answer = client.read("/v1/deployments", filter=expression)
    if screen.wants_document:
        screen.document(answer.checked(list[Deployment]))
        return
    show_deployments(screen, answer.decode(list[Deployment]))


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@click.option("--monitor", is_flag=True, help="Watch the deployment until it has ended.")
@with_output
@with_client
def status(client: ApiClient, screen: Screen, deployment_id: str, *, monitor: bool) -> int:
    """Show DEPLOYMENT; a unique prefix of its ID is enough.

    Example: steward deployment status -monitor 8e1b04f7
    """
    deployment = resolve.deployment(client, deployment_id)
    path = f"/v1/deployment/{segment(deployment.id)}"
    if monitor:
        return _follow(client, screen, deployment.id)
    if screen.wants_document:
        screen.document(client.read(path).body)
        return 0
    show_deployment(screen, deployment)
    return 0


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@_GROUP
@DETACH
@with_output
@with_client
def promote(
    client: ApiClient, screen: Screen, deployment_id: str, *, groups: tuple[str, ...], detach: bool
) -> int:
    """Promote the healthy canaries of DEPLOYMENT, so that they replace the old version.

    Example: steward deployment promote -group web 8e1b04f7
    """
    deployment = resolve.deployment(client, deployment_id)
    return _promote(client, screen, deployment, groups, detach=detach)


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@DETACH
@with_output
@with_client
def fail(client: ApiClient, screen: Screen, deployment_id: str, *, detach: bool) -> int:
    """Fail DEPLOYMENT; groups with auto_revert return to the latest stable version.

    Example: steward deployment fail 8e1b04f7
    """
    deployment = resolve.deployment(client, deployment_id)
    answer = client.send("POST", f"/v1/deployment/fail/{segment(deployment.id)}")
    return _steered(client, screen, deployment, answer, detach=detach)


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@with_output
@with_client
def pause(client: ApiClient, screen: Screen, deployment_id: str) -> int:
    """Pause DEPLOYMENT: no more allocations are placed until it is resumed.

    Example: steward deployment pause 8e1b04f7
    """
    return _pause(client, screen, deployment_id, paused=True, detach=True)


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@DETACH
@with_output
@with_client
def resume(client: ApiClient, screen: Screen, deployment_id: str, *, detach: bool) -> int:
    """Resume DEPLOYMENT.

    Example: steward deployment resume 8e1b04f7
    """
    return _pause(client, screen, deployment_id, paused=False, detach=detach)


def _pause(
    client: ApiClient, screen: Screen, id_or_prefix: str, *, paused: bool, detach: bool
) -> int:
    deployment = resolve.deployment(client, id_or_prefix)
    body = {"DeploymentID": deployment.id, "Pause": paused}
    answer = client.send("POST", f"/v1/deployment/pause/{segment(deployment.id)}", body)
    return _steered(client, screen, deployment, answer, detach=detach)


# --- by job ---------------------------------------------------------------------------------------


@click.command("promote")
@click.argument("job_id", metavar="JOB")
@_GROUP
@DETACH
@with_output
@with_client
def promote_job(
    client: ApiClient, screen: Screen, job_id: str, *, groups: tuple[str, ...], detach: bool
) -> int:
    """Promote the healthy canaries of the latest deployment of JOB.

    Example: steward job promote web
    """
    line = resolve.job(client, job_id)
    deployment = _latest(client, line)
    if deployment is None:
        raise NotFound(f'job "{line.id}" has no deployment to promote')
    return _promote(client, screen, deployment, groups, detach=detach)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--latest", is_flag=True, help="Show all details of the latest deployment.")
@click.option(
    "--all", "lists_all", is_flag=True, help="Include deployments of a purged job with this name."
)
@with_output
@with_client
def of_job(
    client: ApiClient, screen: Screen, job_id: str, *, latest: bool, lists_all: bool
) -> None:
    """List the deployments of JOB, newest first.

    Example: steward job deployments -latest web
    """
    line = resolve.job(client, job_id)
    if latest and not screen.wants_document:
        newest = _latest(client, line)
        if newest is None:
            screen.line("No deployments")
        else:
            show_deployment(screen, newest)
        return
    path = f"/v1/job/{segment(line.id)}/deployment{'' if latest else 's'}"
    more = {"all": True} if lists_all else {}
    answer = client.read(path, namespace=line.namespace, **more)
    if screen.wants_document:
        screen.document(answer.checked(list[Deployment]))
        return
    show_deployments(screen, answer.decode(list[Deployment]))


def _latest(client: ApiClient, line: JobListItem) -> Deployment | None:
    path = f"/v1/job/{segment(line.id)}/deployments"
    deployments = client.fetch(path, list[Deployment], namespace=line.namespace)
    return deployments[0] if deployments else None


def _promote(
    client: ApiClient,
    screen: Screen,
    deployment: Deployment,
    groups: Sequence[str],
    *,
    detach: bool,
) -> int:
    chosen = {"Groups": list(groups)} if groups else {"All": True}
    body = {"DeploymentID": deployment.id, **chosen}
    answer = client.send("POST", f"/v1/deployment/promote/{segment(deployment.id)}", body)
    return _steered(client, screen, deployment, answer, detach=detach)


def _steered(
    client: ApiClient,
    screen: Screen,
    deployment: Deployment,
    answer: ClientResponse,
    *,
    detach: bool,
) -> int:
    done = answer.decode(DeploymentActionResult)
    if not detach and done.eval_id:
        return _follow(client, screen, deployment.id)
    if screen.wants_document:
        screen.document(answer.body)
        return 0
    screen.line(f"Evaluation ID: {done.eval_id or 'not needed'}")
    if done.reverted_job_version is not None:
        screen.line(f"Reverted to version {done.reverted_job_version}")
    return 0


def _follow(client: ApiClient, screen: Screen, deployment_id: str) -> int:
    try:
        with screen.progress() as progress:
            ended = follow_deployment(client, progress, deployment_id)
    except KeyboardInterrupt:
        screen.warn("\nno longer waiting; the deployment continues, see: steward deployment status")
        return EXIT_INTERRUPTED
    if screen.wants_document:
        screen.document(ended.body)
    else:
        screen.line(f"deployment {screen.short(deployment_id)} {ended.words}")
    return ended.status


# --- output ---


def show_deployments(screen: Screen, deployments: Sequence[Deployment]) -> None:
    """Print a table of deployments."""
    if not deployments:
        screen.line("No deployments")
        return
    screen.table(
        ["ID", "Job ID", "Job Version", "Status", "Description"],
        [
            [
                screen.short(deployment.id),
                deployment.job_id,
                str(deployment.job_version),
                deployment.status,
                deployment.status_description,
            ]
            for deployment in deployments
        ],
    )


def show_deployment(screen: Screen, deployment: Deployment) -> None:
    """Print a deployment with its groups."""
    screen.facts(
        [
            ("ID", deployment.id),
            ("Job ID", deployment.job_id),
            ("Job Version", str(deployment.job_version)),
            ("Status", deployment.status),
            ("Description", deployment.status_description),
        ]
    )
    screen.title("Deployed")
    header = ["Task Group", "Auto Revert", "Promoted", "Desired", "Canaries", "Placed"]
    screen.table(
        [*header, "Healthy", "Unhealthy", "Progress Deadline"],
        [
            [
                name,
                str(state.auto_revert).lower(),
                str(state.promoted).lower() if state.desired_canaries else "N/A",
                str(state.desired_total),
                str(state.desired_canaries),
                str(state.placed_allocs),
                str(state.healthy_allocs),
                str(state.unhealthy_allocs),
                format_api_time(state.require_progress_by),
            ]
            for name, state in sorted(deployment.task_groups.items())
        ],
    )
