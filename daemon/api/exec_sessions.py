"""Commands inside tasks over a WebSocket: any command, or an action of the job.

Errors are sent in the close frame, with a code for the kind of error (source: Nomad's recorded
responses `alloc-exec`, `actions`).
"""

from daemon.api.cluster.lookup import resolve_allocation
from daemon.web.parameters import InvalidParameter, QueryParameters
from daemon.web.request import Request
from daemon.web.websocket import WebSocketChannel
from storage.errors import Malformed, NotFound, Refused
from storage.records import go_json
from storage.records.allocation import Allocation
from storage.records.codec import parse
from storage.records.driver import is_listed
from storage.records.task import Action, Task

_NOT_ISOLATED = frozenset({"raw_exec"})  # drivers whose tasks run directly on the node
_NO_TASK = "must provide task name"
_NO_COMMAND = "command is not present"


async def execute(request: Request, socket: WebSocketChannel) -> None:
    """Run a command inside a task of an allocation."""
    query = request.query
    command, tty = _command(query.text("command")), _tty(query)
    allocation, group = await resolve_allocation(request.parts.store, request["alloc_id"])
    task = query.text("task")
    _check_rights(request, allocation, group.task(task) if group else None)
    if not task:
        raise Malformed(_NO_TASK)
    if not command:
        raise Malformed(_NO_COMMAND)
    await request.parts.tasks.run_exec_session(allocation.id, task, command, socket, tty=tty)


def _check_rights(request: Request, allocation: Allocation, task: Task | None) -> None:
    """Raise `Denied` unless the caller may run commands in this task.

    A task whose driver does not isolate it also requires the permission to run commands on the
    node.
    """
    request.require(allocation.namespace)
    if task is not None and is_listed(task.driver, _NOT_ISOLATED):
        request.check(lambda caller: caller.grant.may(allocation.namespace, "alloc-node-exec"))


def _command(text: str) -> list[str]:
    """Return a command from JSON. Raises `Refused` with the error text of Go's JSON library."""
    try:
        value = parse(text.encode())
    except Malformed as error:
        ended = {"EOF", "unexpected EOF", "Request body is empty"}
        reason = "unexpected end of JSON input" if str(error) in ended else str(error)
        raise Refused(f"failed to marshal command into json: {reason}") from error
    words = value if isinstance(value, list) else []
    if value is not None and not isinstance(value, list):
        reason = f"json: cannot unmarshal {go_json.kind(value)} into Go value of type []string"
        raise Refused(f"failed to marshal command into json: {reason}")
    for word in words:
        if not isinstance(word, str):
            reason = f"json: cannot unmarshal {go_json.kind(word)} into Go value of type string"
            raise Refused(f"failed to marshal command into json: {reason}")
    return words


def _tty(query: QueryParameters) -> bool:
    try:
        return query.flag("tty")
    except InvalidParameter as error:
        reason = str(error).partition(" as a bool: ")[2]
        raise Refused(f"tty value is not a boolean: {reason}") from error


async def run_action(request: Request, socket: WebSocketChannel) -> None:
    """Run an action of a job inside a task of an allocation."""
    query, tty = request.query, _tty(request.query)
    # The name in the specification, and the one that Nomad reads instead.
    alloc_id = query.text("alloc_id") or query.text("allocID")
    if not alloc_id:
        raise Malformed("missing AllocID")
    action = await _action(request, alloc_id)
    command = [action.command, *(action.args or ())]
    await request.parts.tasks.run_exec_session(
        alloc_id, query.text("task"), command, socket, tty=tty
    )


async def _action(request: Request, alloc_id: str) -> Action:
    """Return the requested action. Raises `Malformed` or `NotFound`."""
    task_name, name = request.query.text("task"), request.query.text("action")
    allocation, group = await resolve_allocation(request.parts.store, alloc_id)
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
