"""`node drain` and `node eligibility`: empty a node and keep new work away, or open it again."""

import sys

import click

from daemon.cli import resolve
from daemon.cli.client import Client, segment
from daemon.cli.node import own_id
from daemon.cli.options import connected, shown
from daemon.cli.output import Progress, Row, Screen
from daemon.cli.run import EXIT_INTERRUPTED
from daemon.cli.text import short
from storage.errors import Invalid
from storage.records.base import HOUR
from storage.records.durations import nanoseconds
from storage.records.node import Node

_AT_ONCE, _NEVER = -1, 0  # as deadlines of a drain, in nanoseconds

_NODE = click.argument("given", metavar="[NODE]", required=False)
_OWN = click.option("--self", "own", is_flag=True, help="The node of the daemon itself.")
_CHOICE = click.option("--enable/--disable", "enable", default=None, help="Begin, or stop.")


def _meant(client: Client, given: str | None, *, own: bool) -> Node:
    """Return the node that is meant. Raises `Invalid` unless exactly one way to say so is used."""
    if (given is None) != own:
        raise Invalid("name a NODE, or give -self for the daemon's own")
    return resolve.node(client, given or own_id(client))


def _chosen(*, enable: bool | None) -> bool:
    if enable is None:
        raise Invalid("say what to do: -enable or -disable")
    return enable


@click.command()
@_NODE
@_OWN
@_CHOICE
@shown
@connected
def eligibility(
    client: Client,
    screen: Screen,
    given: str | None,
    *,
    own: bool,
    enable: bool | None,
) -> None:
    """Let new work be placed on NODE, or keep it away; what runs there stays.

    Example: steward node eligibility -self -disable
    """
    wanted = "eligible" if _chosen(enable=enable) else "ineligible"
    node = _meant(client, given, own=own)
    answer = client.send(
        "POST", f"/v1/node/{segment(node.id)}/eligibility", {"Eligibility": wanted}
    )
    if screen.wants_document:
        screen.document(answer.body)
        return
    screen.line(f"node {screen.short(node.id)} ({node.name}) is {wanted} for new work")


@click.command()
@_NODE
@_OWN
@_CHOICE
@click.option("--deadline", default="", metavar="TIME", help="Until all must end [default: 1h].")
@click.option("--force", is_flag=True, help="Have all end at once.")
@click.option("--no-deadline", is_flag=True, help="Wait however long it takes.")
@click.option("--ignore-system", is_flag=True, help="Leave jobs of the type system running.")
@click.option("--keep-ineligible", is_flag=True, help="With -disable: still keep new work away.")
@click.option("-m", "--message", default="", metavar="TEXT", help="Why; kept with the node.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--detach", is_flag=True, help="Do not wait until it is empty.")
@shown
@connected
def drain(
    client: Client,
    screen: Screen,
    given: str | None,
    *,
    own: bool,
    enable: bool | None,
    deadline: str,
    force: bool,
    no_deadline: bool,
    ignore_system: bool,
    keep_ineligible: bool,
    message: str,
    yes: bool,
    detach: bool,
) -> int:
    """Have everything on NODE end and keep new work away, or stop that.

    Example: steward node drain -self -enable -deadline 1h
    """
    begins = _chosen(enable=enable)
    body: dict[str, object] = {"MarkEligible": not begins and not keep_ineligible}
    if begins:
        ends = _deadline(deadline, force=force, no_deadline=no_deadline)
        body["DrainSpec"] = {"Deadline": ends, "IgnoreSystemJobs": ignore_system}
    if message:
        body["Meta"] = {"message": message}
    node = _meant(client, given, own=own)
    if begins and not yes and sys.stdin.isatty():
        click.confirm(f"Have everything on node {node.name} end?", abort=True)
    answer = client.send("POST", f"/v1/node/{segment(node.id)}/drain", body)
    if screen.wants_document:
        screen.document(answer.body)
    about = f"node {screen.short(node.id)} ({node.name})"
    if detach or not begins:
        if not screen.wants_document:
            screen.line(f"{about}: drain {'begun' if begins else 'ended'}")
        return 0
    try:
        with screen.progress() as progress:
            _follow(client, progress, node.id)
    except KeyboardInterrupt:
        screen.warn(f"\nno longer following; {about} is still being drained")
        return EXIT_INTERRUPTED
    if not screen.wants_document:
        screen.line(f"{about} is drained; -disable or node eligibility -enable opens it again")
    return 0


def _deadline(text: str, *, force: bool, no_deadline: bool) -> int:
    """Return a deadline in nanoseconds. Raises `Invalid` when more than one is given."""
    if sum([bool(text), force, no_deadline]) > 1:
        raise Invalid("-deadline, -force and -no-deadline: give only one of them")
    if force:
        return _AT_ONCE
    if no_deadline:
        return _NEVER
    try:
        found = nanoseconds(text) if text else HOUR
    except ValueError:
        found = 0
    if found <= 0:
        raise Invalid(f"-deadline {text!r} is no span of time such as 90s, 30m or 1h")
    return found


def _follow(client: Client, progress: Progress, node_id: str) -> None:
    """Return when a node is not being drained any more."""
    path = f"/v1/node/{segment(node_id)}"
    answer = client.read(path)
    while True:
        node = answer.decode(Node)
        progress.show([Row("node", short(node.id), node.name, _state(node))])
        if not node.drain:
            return
        answer = client.newer(path, answer.index)


def _state(node: Node) -> str:
    return (
        "draining" if node.drain else f"drain {node.last_drain.status}" if node.last_drain else ""
    )
