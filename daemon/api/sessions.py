"""Commands inside tasks, over a WebSocket: any command, or an action that the job declares.

What is wrong with a request is told in the close frame; which code it gets follows from the kind of
the error (golden: alloc-exec, actions).
"""

from daemon.api.cluster.find import find_group
from daemon.web.parameters import BadParameter, Query
from daemon.web.request import Request
from daemon.web.socket import Socket
from storage.errors import Denied, Malformed, NotFound, Refused
from storage.records import gojson
from storage.records.allocation import Allocation
from storage.records.codec import parse
from storage.records.driver import is_listed
from storage.records.task import Action, Task

_NOT_ISOLATED = frozenset({"raw_exec"})  # drivers in whose tasks one is on the node itself
_NO_TASK = "must provide task name"
_NO_COMMAND = "command is not present"


async def execute(request: Request, socket: Socket) -> None:
    """Run a command inside a task of an allocation."""
    query = request.query
    command, tty = _command(query.text("command")), _tty(query)
    allocation, group = request.parts.store.read(lambda db: find_group(db, request["alloc_id"]))
    task = query.text("task")
    _check_rights(request, allocation, group.task(task) if group else None)
    if not task:
        raise Malformed(_NO_TASK)
    if not command:
        raise Malformed(_NO_COMMAND)
    await request.parts.tasks.converse(allocation.id, task, command, socket, tty=tty)


def _check_rights(request: Request, allocation: Allocation, task: Task | None) -> None:
    """Raise `Denied` unless the caller may do this inside a task, and so perhaps on the node."""
    request.require(allocation.namespace)
    on_node = task is not None and is_listed(task.driver, _NOT_ISOLATED)
    if on_node and not request.caller.grant.may(allocation.namespace, "alloc-node-exec"):
        raise Denied


def _command(given: str) -> list[str]:
    """Return a command from JSON. Raises `Refused` in the words of the peer's library."""
    try:
        value = parse(given.encode())
    except Malformed as error:
        ended = {"unexpected EOF", "Request body is empty"}
        reason = "unexpected end of JSON input" if str(error) in ended else str(error)
        raise Refused(f"failed to marshal command into json: {reason}") from error
    words = value if isinstance(value, list) else []
    if value is not None and not isinstance(value, list):
        reason = f"json: cannot unmarshal {gojson.kind(value)} into Go value of type []string"
        raise Refused(f"failed to marshal command into json: {reason}")
    for word in words:
        if not isinstance(word, str):
            reason = f"json: cannot unmarshal {gojson.kind(word)} into Go value of type string"
            raise Refused(f"failed to marshal command into json: {reason}")
    return words


def _tty(query: Query) -> bool:
    try:
        return query.flag("tty")
    except BadParameter as error:
        reason = str(error).partition(" as a bool: ")[2]
        raise Refused(f"tty value is not a boolean: {reason}") from error


async def run_action(request: Request, socket: Socket) -> None:
    """Run an action of a job inside a task of one of its allocations."""
    query, tty = request.query, _tty(request.query)
    # The specification's name, and the one that the peer reads instead.
    alloc_id = query.text("alloc_id") or query.text("allocID")
    if not alloc_id:
        raise Malformed("missing AllocID")
    action = _action(request, alloc_id)
    command = [action.command, *(action.args or ())]
    await request.parts.tasks.converse(alloc_id, query.text("task"), command, socket, tty=tty)


def _action(request: Request, alloc_id: str) -> Action:
    """Return the action that is meant. Raises `Malformed` or `NotFound`."""
    task_name, name = request.query.text("task"), request.query.text("action")
    allocation, group = request.parts.store.read(lambda db: find_group(db, alloc_id))
    if (allocation.namespace, allocation.job_id) != (request.namespace, request["job_id"]):
        raise NotFound(f"job {request['job_id']} does not have allocation {alloc_id}")
    if not task_name:
        raise Malformed(_NO_TASK)
    if not name:
        raise Malformed(_NO_COMMAND)
    task = group.task(task_name) if group else None
    _check_rights(request, allocation, task)
    if task is None:
        raise NotFound(f"task {task_name} not found in allocation {alloc_id}")
    for action in task.actions or ():
        if action.name == name:
            return action
    raise NotFound(f"action {name} not found in task {task_name}")
