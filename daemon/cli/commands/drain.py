"""`node drain` and `node eligibility`: drain a node, or change its eligibility."""

import sys

import click

from daemon.cli.commands.node import own_id
from daemon.cli.commands.run import EXIT_INTERRUPTED
from daemon.cli.core import resolve
from daemon.cli.core.formatting import short
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import ProgressDisplay, ProgressRow, Screen
from storage.errors import Invalid
from storage.records.base import HOUR
from storage.records.durations import nanoseconds
from storage.records.node import Node

_AT_ONCE, _NEVER = -1, 0  # drain deadlines in nanoseconds: immediately, and no deadline

_NODE = click.argument("id_or_prefix", metavar="[NODE]", required=False)
_OWN = click.option("--self", "own", is_flag=True, help="The daemon's own node.")


def _selected_node(client: ApiClient, id_or_prefix: str | None, *, own: bool) -> Node:
    """Return the node that the arguments select.

    Raises `Invalid` unless they select exactly one node.
    """
    if (id_or_prefix is None) != own:
        raise Invalid("name a NODE, or pass -self for the daemon's own node")
    return resolve.node(client, id_or_prefix or own_id(client))


def _chosen(*, enable: bool, disable: bool) -> bool:
    if enable and disable:
        raise Invalid("-enable and -disable exclude each other: pass only one")
    if not enable and not disable:
        raise Invalid("no action given: pass -enable or -disable")
    return enable


@click.command()
@_NODE
@_OWN
@click.option("--enable", is_flag=True, help="Make it eligible.")
@click.option("--disable", is_flag=True, help="Make it ineligible.")
@with_output
@with_client
def eligibility(
    client: ApiClient,
    screen: Screen,
    id_or_prefix: str | None,
    *,
    own: bool,
    enable: bool,
    disable: bool,
) -> None:
    """Make NODE eligible or ineligible for placements; running allocations stay.

    Example: steward node eligibility -self -disable
    """
    eligibility_word = "eligible" if _chosen(enable=enable, disable=disable) else "ineligible"
    node = _selected_node(client, id_or_prefix, own=own)
    answer = client.send(
        "POST", f"/v1/node/{segment(node.id)}/eligibility", {"Eligibility": eligibility_word}
    )
    if screen.wants_document:
        screen.document(answer.object_body())
        return
    screen.line(f"node {screen.short(node.id)} ({node.name}) is {eligibility_word} for placements")


@click.command()
@_NODE
@_OWN
@click.option("--enable", is_flag=True, help="Start the drain.")
@click.option("--disable", is_flag=True, help="Cancel the drain.")
@click.option(
    "--deadline", default="", metavar="TIME", help="Deadline for the drain [default: 1h]."
)
@click.option("--force", is_flag=True, help="Stop all allocations immediately.")
@click.option("--no-deadline", is_flag=True, help="Wait without a deadline.")
@click.option("--ignore-system", is_flag=True, help="Leave system jobs running.")
@click.option("--keep-ineligible", is_flag=True, help="With -disable: keep the node ineligible.")
@click.option("-m", "--message", default="", metavar="TEXT", help="Reason, stored with the node.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--detach", is_flag=True, help="Do not wait for the end of the drain.")
@with_output
@with_client
def drain(
    client: ApiClient,
    screen: Screen,
    id_or_prefix: str | None,
    *,
    own: bool,
    enable: bool,
    disable: bool,
    deadline: str,
    force: bool,
    no_deadline: bool,
    ignore_system: bool,
    keep_ineligible: bool,
    message: str,
    yes: bool,
    detach: bool,
) -> int:
    """Move all allocations off NODE and make it ineligible, or cancel the drain.

    Example: steward node drain -self -enable -deadline 1h
    """
    begins = _chosen(enable=enable, disable=disable)
    body: dict[str, object] = {"MarkEligible": not begins and not keep_ineligible}
    _check_flags(
        begins=begins,
        of_begin=bool(deadline) or force or no_deadline or ignore_system,
        of_end=keep_ineligible,
    )
    if begins:
        ends = _deadline(deadline, force=force, no_deadline=no_deadline)
        body["DrainSpec"] = {"Deadline": ends, "IgnoreSystemJobs": ignore_system}
    if message:
        body["Meta"] = {"message": message}
    node = _selected_node(client, id_or_prefix, own=own)
    if begins and not yes and sys.stdin.isatty():
        click.confirm(f"Stop all allocations on node {node.name}?", abort=True)
    answer = client.send("POST", f"/v1/node/{segment(node.id)}/drain", body)
    if screen.wants_document:
        screen.document(answer.object_body())
    subject = f"node {screen.short(node.id)} ({node.name})"
    if detach or not begins:
        if not screen.wants_document:
            screen.line(_outcome(subject, node, begins=begins, keep_ineligible=keep_ineligible))
        return 0
    try:
        with screen.progress() as progress:
            _follow(client, progress, node.id)
    except KeyboardInterrupt:
        screen.warn(f"\nno longer waiting; {subject} is still draining")
        return EXIT_INTERRUPTED
    if not screen.wants_document:
        screen.line(f"{subject} is drained; node eligibility -enable makes it eligible again")
    return 0


def _outcome(subject: str, before: Node, *, begins: bool, keep_ineligible: bool) -> str:
    """Return the effect of a request on a node, whose state before the request is given."""
    if begins:
        return f"{subject}: drain {'changed' if before.drain else 'started'}"
    if before.drain:
        return f"{subject}: drain cancelled"
    effect = "" if keep_ineligible else ", and is eligible for placements"
    return f"{subject} was not draining{effect}"


def _check_flags(*, begins: bool, of_begin: bool, of_end: bool) -> None:
    """Raise `Invalid` for an option that the chosen action would ignore."""
    if begins and of_end:
        raise Invalid("-keep-ineligible only goes with -disable")
    if not begins and of_begin:
        raise Invalid("-deadline, -force, -no-deadline and -ignore-system only go with -enable")


def _deadline(text: str, *, force: bool, no_deadline: bool) -> int:
    """Return the deadline in nanoseconds. Raises `Invalid` if several arguments set it."""
    if sum([bool(text), force, no_deadline]) > 1:
        raise Invalid("-deadline, -force and -no-deadline exclude each other: pass only one")
    if force:
        return _AT_ONCE
    if no_deadline:
        return _NEVER
    try:
        deadline = nanoseconds(text) if text else HOUR
    except ValueError:
        deadline = 0
    if deadline <= 0:
        raise Invalid(f"-deadline {text!r} is not a duration such as 90s, 30m or 1h")
    return deadline


def _follow(client: ApiClient, progress: ProgressDisplay, node_id: str) -> None:
    """Show the progress of a node's drain until the drain has ended."""
    path = f"/v1/node/{segment(node_id)}"
    answer = client.read(path)
    while True:
        node = answer.decode(Node)
        progress.show([ProgressRow("node", short(node.id), node.name, _state(node))])
        if not node.drain:
            return
        answer = client.newer(path, answer.index)


def _state(node: Node) -> str:
    return (
        "draining" if node.drain else f"drain {node.last_drain.status}" if node.last_drain else ""
    )
