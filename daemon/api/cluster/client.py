"""Requests about a running allocation: usage, files, and actions on its tasks."""

from functools import partial

from daemon.api.cluster.lookup import find_allocation
from daemon.runner.core.driver import find_signal
from daemon.web.reply import HandlerReply, text, with_remarks
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import nodes
from storage.records.base import Record
from storage.records.node import Node

_DONE = {"Index": 0}
_SHOWN = 40  # characters of an unknown signal
_MOST_ASKED = 200  # allocations that one request for usage may name
_TABLES = ("jobs", "allocations", "deployments", "evaluations")


class RestartRequest(Record, frozen=True, kw_only=True):
    """The tasks to restart: one task, all running tasks, or all tasks."""

    task_name: str = ""
    all_tasks: bool = False


class SignalRequest(Record, frozen=True, kw_only=True):
    """A signal by name, for one task or for all running tasks."""

    signal: str = ""
    task: str = ""
    task_name: str = ""


class PauseRequest(Record, frozen=True, kw_only=True):
    """A request to pause or resume a task."""

    task: str = ""
    schedule_state: str = ""


async def _known(request: Request) -> str:
    """Return the allocation ID in the path, after an access check. Raises `NotFound`, `Denied`."""
    allocation = await find_allocation(request.parts.store, request["alloc_id"])
    request.require(allocation.namespace)
    return allocation.id


async def restart(request: Request) -> HandlerReply:
    """Restart tasks of an allocation."""
    restart_request = await request.decoded(RestartRequest) if request.body else RestartRequest()
    if restart_request.all_tasks and restart_request.task_name:
        raise Refused("task name cannot be set when restarting all tasks")
    await request.parts.tasks.restart(
        await _known(request),
        restart_request.task_name or None,
        all_tasks=restart_request.all_tasks,
    )
    return HandlerReply(body=_DONE)


async def signal(request: Request) -> HandlerReply:
    """Send a signal to tasks of an allocation."""
    signal_request = await request.decoded(SignalRequest)
    task = signal_request.task or signal_request.task_name
    await request.parts.tasks.signal(await _known(request), task or None, signal_request.signal)
    return with_remarks(HandlerReply(body=_DONE), _remarks_on_signal(signal_request.signal))


def _remarks_on_signal(name: str) -> list[str]:
    """Return a warning for an unknown signal, which becomes SIGINT as in Nomad."""
    if not name or find_signal(name):
        return []
    return [f"unknown signal {name[:_SHOWN]!a}: SIGINT was sent instead"]


async def pause(request: Request) -> HandlerReply:
    """Reject the request, because Steward has no tasks with a schedule."""
    await request.decoded(PauseRequest)
    await _known(request)
    raise Refused("only a task with a schedule can be paused, and schedules are not supported")


async def allocation_stats(request: Request) -> HandlerReply:
    """Show the resource usage of an allocation."""
    return HandlerReply(body=await request.parts.tasks.usage(await _known(request)))


async def usages(request: Request) -> HandlerReply:
    """Show the usage of the allocations in the query, with the state index.

    Allocations that do not run, or that the caller may not see, are left out. Raises `Malformed` if
    the query lists too many allocations.
    """
    alloc_ids = [part for part in request.query.text("allocations").split(",") if part]
    if len(alloc_ids) > _MOST_ASKED:
        raise Malformed(
            f'"allocations" lists {len(alloc_ids)} allocations: the maximum is {_MOST_ASKED}'
        )
    allocation_usage_lines = await request.parts.tasks.brief_usages(alloc_ids, request.sees)
    index = request.parts.store.read(lambda db: max(map(db.table_index, _TABLES)))
    return HandlerReply(body=allocation_usage_lines, index=index)


async def checks(request: Request) -> HandlerReply:
    """Show the latest results of an allocation's service checks."""
    checks_by_id = {check.id: check for check in request.parts.tasks.checks(await _known(request))}
    return HandlerReply(body=checks_by_id or b"null")


async def gc_allocation(request: Request) -> HandlerReply:
    """Delete the directory of a terminal allocation."""
    await request.parts.tasks.collect(await _known(request))
    return HandlerReply()


async def gc_all(request: Request) -> HandlerReply:
    """Schedule the deletion of the directories of all terminal allocations.

    Raises `Refused` if the query names an unknown node.
    """
    _named(request)
    request.parts.tasks.collect_all()
    return HandlerReply()


async def host_stats(request: Request) -> HandlerReply:
    """Show the host's resource usage.

    Raises `Refused` for a cluster pool, because the daemon does not run on its hosts.
    """
    try:
        node = _named(request)
    except Refused as error:
        raise NotFound(str(error)) from None
    if node is not None and node.engine:
        raise Refused(
            f'node "{node.id}" is a pool of a cluster: Steward does not know the usage of its hosts'
        )
    return HandlerReply(body=request.parts.tasks.host_usage())


def _named(request: Request) -> Node | None:
    """Return the node that the query names. Raises `Refused` for an unknown node."""
    if not (node_id := request.query.text("node_id")):
        return None
    node = request.parts.store.read(partial(nodes.find, node_id=node_id))
    if node is None:
        raise Refused(f"Unknown node {node_id}")
    return node


async def allocation_not_found(request: Request) -> HandlerReply:
    """Reject an unknown kind of request about an allocation."""
    del request
    return text("resource not found", 404)
