"""The pages of one allocation: its tasks, their output, and their files."""

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from daemon.ui import formatting, gantt
from daemon.ui.render import Found, page
from daemon.ui.usage import usage_section
from daemon.web.reply import HandlerReply, of_error
from daemon.web.ui_session import UiRequest, build_in_thread
from storage.errors import Denied, NotFound, StewardError


async def allocation_header(ui_request: UiRequest, tab: str) -> dict[str, Any]:
    """Return the data that all pages of an allocation show."""
    alloc = await ui_request.get(formatting.address("/v1/allocation/", ui_request["alloc_id"]))
    return {
        "alloc": alloc,
        "tab": tab,
        "namespace": alloc["Namespace"],
        "follow": alloc["ID"],
        "tasks": alloc.get("TaskStates") or {},
        "base": f"/ui/allocation/{quote(alloc['ID'], safe='')}",
    }


@page("allocation.html", is_shared=True)
async def overview(ui_request: UiRequest) -> Found:
    """Show the tasks of an allocation with their events and their resource usage."""
    base = await allocation_header(ui_request, "overview")
    usage = None
    if base["alloc"]["ClientStatus"] == "running":
        try:
            usage = await ui_request.get(f"/v1/client/allocation/{base['alloc']['ID']}/stats")
        except NotFound:  # the allocation ended in the meantime
            usage = None
    alloc = base["alloc"]
    lifecycles = alloc["AllocatedResources"]["TaskLifecycles"] or {}
    line = gantt.timeline(base["tasks"], lifecycles, alloc["CreateTime"], ui_request.now)
    path = formatting.address("/v1/allocation/", ui_request["alloc_id"])
    history = await usage_section(ui_request, path, base["base"])
    try:
        kept_files = await ui_request.get(
            formatting.address("/v1/allocation/", alloc["ID"], "/kept")
        )
    except Denied:  # the user may see the allocation, but not its files
        kept_files = []
    return {**base, "usage": usage, "line": line, "history": history, "kept": kept_files}


@page("terminal.html")
async def terminal(ui_request: UiRequest) -> Found:
    """Show a terminal in a task, for a command or for an action of the job.

    The page's script uses the same API route as the command line.
    """
    base = await allocation_header(ui_request, "terminal")
    alloc = base["alloc"]
    running = [name for name, state in base["tasks"].items() if state["State"] == "running"]
    task_name, name = ui_request.query.text("task"), ui_request.query.text("action")
    task = task_name if task_name in running else next(iter(running), "")
    parameters = {"tty": "true", "ws_handshake": "true"}
    if not name:
        path = ("/ui/v1/client/allocation/", alloc["ID"], "/exec")
        return {
            **base,
            "running": running,
            "task": task,
            "talk": formatting.address(*path, **parameters),
        }
    action = _action(alloc, task_name, name)
    parameters |= {"namespace": alloc["Namespace"], "allocID": alloc["ID"], "task": task_name}
    action_url = formatting.address(
        "/ui/v1/job/", alloc["JobID"], "/action", **parameters, action=name
    )
    still = task_name in running
    return {**base, "running": still, "task": task_name, "action": action, "talk": action_url}


def _action(alloc: dict[str, Any], task_name: str, name: str) -> dict[str, Any]:
    """Return the action of a task with this name. Raises `NotFound`."""
    for group in alloc["Job"]["TaskGroups"]:
        for task in group["Tasks"] if group["Name"] == alloc["TaskGroup"] else ():
            for action in (task["Actions"] or ()) if task["Name"] == task_name else ():
                if action["Name"] == name:
                    return dict(action)
    raise NotFound(f"action {name} not found in task {task_name}")


@page("files.html")
async def files(ui_request: UiRequest) -> Found:
    """Show a directory of an allocation."""
    base = await allocation_header(ui_request, "files")
    path = PurePosixPath("/", ui_request.query.text("path"))
    listed = await ui_request.get(
        formatting.address("/v1/client/fs/ls/", ui_request["alloc_id"]), path=str(path)
    )
    entries = await build_in_thread(
        lambda: sorted(listed or (), key=lambda entry: (not entry["IsDir"], entry["Name"]))
    )
    parents = [] if path == PurePosixPath("/") else [*reversed(path.parents), path]
    return {**base, "path": str(path), "parents": parents, "entries": entries}


async def file(ui_request: UiRequest) -> HandlerReply:
    """Return a file of an allocation, but never as an HTML page, because a task has written it."""
    path = PurePosixPath("/", ui_request.query.text("path"))
    target = formatting.address("/v1/client/fs/cat/", ui_request["alloc_id"])
    return await _download(ui_request, target, path=str(path))


async def kept_file(ui_request: UiRequest) -> HandlerReply:
    """Return a kept file of an allocation, but never as an HTML page."""
    target = formatting.address("/v1/allocation/", ui_request["alloc_id"], "/kept/file")
    query = ui_request.query
    return await _download(ui_request, target, path=query.text("path"), task=query.text("task"))


async def _download(ui_request: UiRequest, target: str, *, path: str, **query: str) -> HandlerReply:
    try:
        answer = await ui_request.ask("GET", target, path=path, **query)
    except StewardError as error:
        return of_error(error)
    name = quote(PurePosixPath(path).name, safe="")
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return HandlerReply(
        body=answer.body,
        stream=answer.stream,
        content_type="application/octet-stream",
        headers=headers,
    )
