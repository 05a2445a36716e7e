"""What can be asked of the machine about an allocation that it runs, and done to it."""

from functools import partial

from daemon.api.cluster.find import find_group
from daemon.web.reply import Reply, text
from daemon.web.request import Request
from storage.errors import Refused
from storage.queries import nodes
from storage.records.base import Record

_DONE = {"Index": 0}


class Restart(Record, frozen=True, kw_only=True):
    """Which tasks begin anew: one, or those that run, or all."""

    task_name: str = ""
    all_tasks: bool = False


class Signal(Record, frozen=True, kw_only=True):
    """A signal by name, and for which task; for all that run if none is named."""

    signal: str = ""
    task: str = ""
    task_name: str = ""


class Pause(Record, frozen=True, kw_only=True):
    """Whether a task is to stand still."""

    task: str = ""
    schedule_state: str = ""


def _known(request: Request) -> str:
    """Return the id in the path if the caller may do this to it. Raises `NotFound`, `Denied`."""
    allocation, _ = request.parts.store.read(lambda db: find_group(db, request["alloc_id"]))
    request.require(allocation.namespace)
    return allocation.id


async def restart(request: Request) -> Reply:
    """Begin another attempt at tasks of an allocation."""
    asked = await request.decoded(Restart) if request.body else Restart()
    if asked.all_tasks and asked.task_name:
        raise Refused("task name cannot be set when restarting all tasks")
    await request.parts.tasks.restart(
        _known(request), asked.task_name or None, all_tasks=asked.all_tasks
    )
    return Reply(body=_DONE)


async def signal(request: Request) -> Reply:
    """Send a signal to tasks of an allocation."""
    asked = await request.decoded(Signal)
    task = asked.task or asked.task_name
    await request.parts.tasks.signal(_known(request), task or None, asked.signal)
    return Reply(body=_DONE)


async def pause(request: Request) -> Reply:
    """Refuse: only tasks with a schedule can be paused, and there are none."""
    await request.decoded(Pause)
    _known(request)
    raise Refused("only a task with a schedule can be paused, and schedules are not supported")


async def usage(request: Request) -> Reply:
    """Show what an allocation uses."""
    return Reply(body=await request.parts.tasks.usage(_known(request)))


async def checks(request: Request) -> Reply:
    """Show what the checks of an allocation's services found last."""
    found = {one.id: one for one in request.parts.tasks.checks(_known(request))}
    return Reply(body=found or b"null")


async def collect(request: Request) -> Reply:
    """Remove the directory of an allocation that has ended."""
    await request.parts.tasks.collect(_known(request))
    return Reply()


async def collect_all(request: Request) -> Reply:
    """Have the directories of all allocations that have ended removed."""
    request.parts.tasks.collect_all()
    return Reply()


async def machine_usage(request: Request) -> Reply:
    """Show what the machine uses. Raises `Refused` for a cluster: its hosts are other machines."""
    asked = request.query.text("node_id")
    node = request.parts.store.read(partial(nodes.find, node_id=asked)) if asked else None
    if node is not None and node.engine:
        raise Refused(
            f'node "{asked}" is a pool of a cluster: nobody here knows what its hosts use'
        )
    return Reply(body=request.parts.tasks.machine_usage())


async def unknown(request: Request) -> Reply:
    """Answer for a question about an allocation that there is not."""
    del request
    return text("resource not found", 404)
