"""`deployment …` and what `job` says of deployments: list them, follow one, steer it."""

from collections.abc import Sequence

import click

from daemon.cli import resolve
from daemon.cli.answers import JobLine, Steered
from daemon.cli.change import DETACH
from daemon.cli.client import Answer, Client, segment
from daemon.cli.follow import follow_deployment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.run import EXIT_INTERRUPTED
from daemon.cli.text import moment_of
from storage.errors import NotFound
from storage.records.deployment import Deployment

_GROUP = click.option("--group", "groups", multiple=True, help="Only that group; repeatable.")


@click.command("list")
@click.option("--filter", "expression", default="", help="An expression over deployments.")
@shown
@connected
def index(client: Client, screen: Screen, *, expression: str) -> None:
    """List the deployments, newest last.

    Example: steward deployment list -filter 'Status == "running"'
    """
    answer = client.read("/v1/deployments", filter=expression)
    if screen.wants_document:
        screen.document(answer.body)
        return
    show_deployments(screen, answer.decode(list[Deployment]))


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@click.option("--monitor", is_flag=True, help="Follow it until it has ended.")
@shown
@connected
def status(client: Client, screen: Screen, deployment_id: str, *, monitor: bool) -> int:
    """Show DEPLOYMENT; the beginning of its identifier is enough.

    Example: steward deployment status -monitor 8e1b04f7
    """
    found = resolve.deployment(client, deployment_id)
    path = f"/v1/deployment/{segment(found.id)}"
    if monitor:
        return _follow(client, screen, found.id)
    if screen.wants_document:
        screen.document(client.read(path).body)
        return 0
    show_deployment(screen, found)
    return 0


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@_GROUP
@DETACH
@shown
@connected
def promote(
    client: Client, screen: Screen, deployment_id: str, *, groups: tuple[str, ...], detach: bool
) -> int:
    """Let the healthy canaries of DEPLOYMENT replace the rest.

    Example: steward deployment promote -group web 8e1b04f7
    """
    found = resolve.deployment(client, deployment_id)
    return _promote(client, screen, found, groups, detach=detach)


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@DETACH
@shown
@connected
def fail(client: Client, screen: Screen, deployment_id: str, *, detach: bool) -> int:
    """End DEPLOYMENT; groups that ask for it go back to the newest stable version.

    Example: steward deployment fail 8e1b04f7
    """
    found = resolve.deployment(client, deployment_id)
    answer = client.send("POST", f"/v1/deployment/fail/{segment(found.id)}")
    return _steered(client, screen, found, answer, detach=detach)


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@shown
@connected
def pause(client: Client, screen: Screen, deployment_id: str) -> int:
    """Halt DEPLOYMENT: nothing more is placed until it is resumed.

    Example: steward deployment pause 8e1b04f7
    """
    return _pause(client, screen, deployment_id, paused=True, detach=True)


@click.command()
@click.argument("deployment_id", metavar="DEPLOYMENT")
@DETACH
@shown
@connected
def resume(client: Client, screen: Screen, deployment_id: str, *, detach: bool) -> int:
    """Let DEPLOYMENT go on.

    Example: steward deployment resume 8e1b04f7
    """
    return _pause(client, screen, deployment_id, paused=False, detach=detach)


def _pause(client: Client, screen: Screen, given: str, *, paused: bool, detach: bool) -> int:
    found = resolve.deployment(client, given)
    body = {"DeploymentID": found.id, "Pause": paused}
    answer = client.send("POST", f"/v1/deployment/pause/{segment(found.id)}", body)
    return _steered(client, screen, found, answer, detach=detach)


# ---- by the job ----------------------------------------------------------------------------------


@click.command("promote")
@click.argument("job_id", metavar="JOB")
@_GROUP
@DETACH
@shown
@connected
def promote_job(
    client: Client, screen: Screen, job_id: str, *, groups: tuple[str, ...], detach: bool
) -> int:
    """Let the healthy canaries of the newest deployment of JOB replace the rest.

    Example: steward job promote web
    """
    line = resolve.job(client, job_id)
    found = _latest(client, line)
    if found is None:
        raise NotFound(f'job "{line.id}" has no deployment to promote')
    return _promote(client, screen, found, groups, detach=detach)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--latest", is_flag=True, help="Show the newest one whole.")
@click.option("--all", "every", is_flag=True, help="Also those of a purged job of the same name.")
@shown
@connected
def of_job(client: Client, screen: Screen, job_id: str, *, latest: bool, every: bool) -> None:
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
    more = {"all": True} if every else {}
    answer = client.read(path, namespace=line.namespace, **more)
    if screen.wants_document:
        screen.document(answer.body)
        return
    show_deployments(screen, answer.decode(list[Deployment]))


def _latest(client: Client, line: JobLine) -> Deployment | None:
    path = f"/v1/job/{segment(line.id)}/deployments"
    found = client.fetch(path, list[Deployment], namespace=line.namespace)
    return found[0] if found else None


def _promote(
    client: Client, screen: Screen, found: Deployment, groups: Sequence[str], *, detach: bool
) -> int:
    chosen = {"Groups": list(groups)} if groups else {"All": True}
    body = {"DeploymentID": found.id, **chosen}
    answer = client.send("POST", f"/v1/deployment/promote/{segment(found.id)}", body)
    return _steered(client, screen, found, answer, detach=detach)


def _steered(
    client: Client, screen: Screen, found: Deployment, answer: Answer, *, detach: bool
) -> int:
    done = answer.decode(Steered)
    if not detach and done.eval_id:
        return _follow(client, screen, found.id)
    if screen.wants_document:
        screen.document(answer.body)
        return 0
    screen.line(f"Evaluation ID: {done.eval_id or 'not needed'}")
    if done.reverted_job_version is not None:
        screen.line(f"Reverted to version {done.reverted_job_version}")
    return 0


def _follow(client: Client, screen: Screen, deployment_id: str) -> int:
    try:
        with screen.progress() as progress:
            ended = follow_deployment(client, progress, deployment_id)
    except KeyboardInterrupt:
        screen.warn("\nno longer following; it goes on, see: steward deployment status")
        return EXIT_INTERRUPTED
    if screen.wants_document:
        screen.document(ended.body)
    else:
        screen.line(f"deployment {screen.short(deployment_id)} {ended.words}")
    return ended.status


# ---- on the screen -------------------------------------------------------------------------------


def show_deployments(screen: Screen, found: Sequence[Deployment]) -> None:
    """Print a table of deployments."""
    if not found:
        screen.line("No deployments")
        return
    screen.table(
        ["ID", "Job ID", "Job Version", "Status", "Description"],
        [
            [
                screen.short(one.id),
                one.job_id,
                str(one.job_version),
                one.status,
                one.status_description,
            ]
            for one in found
        ],
    )


def show_deployment(screen: Screen, found: Deployment) -> None:
    """Print a deployment with its groups."""
    screen.facts(
        [
            ("ID", found.id),
            ("Job ID", found.job_id),
            ("Job Version", str(found.job_version)),
            ("Status", found.status),
            ("Description", found.status_description),
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
                moment_of(state.require_progress_by),
            ]
            for name, state in sorted(found.task_groups.items())
        ],
    )
