"""One allocation: what its tasks went through, what they print, and their files."""

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from daemon.ui import words
from daemon.ui.show import Found, nanoseconds, page
from daemon.web.reply import Reply, of_error
from daemon.web.visits import Visit
from storage.errors import NotFound, StewardError


async def frame(visit: Visit, tab: str) -> dict[str, Any]:
    """Return what all pages of an allocation show."""
    alloc = await visit.get(words.address("/v1/allocation/", visit["alloc_id"]))
    return {
        "alloc": alloc,
        "tab": tab,
        "namespace": alloc["Namespace"],
        "follow": alloc["ID"],
        "tasks": alloc.get("TaskStates") or {},
        "base": f"/ui/allocation/{quote(alloc['ID'], safe='')}",
    }


@page("allocation.html")
async def overview(visit: Visit) -> Found:
    """Show what the tasks of an allocation went through, and what they use."""
    base = await frame(visit, "overview")
    usage = None
    if base["alloc"]["ClientStatus"] == "running":
        try:
            usage = await visit.get(f"/v1/client/allocation/{base['alloc']['ID']}/stats")
        except NotFound:  # it has ended meanwhile
            usage = None
    lines = {name: _line(state, visit.now) for name, state in base["tasks"].items()}
    return {**base, "usage": usage, "lines": lines}


def _line(state: dict[str, Any], now: int) -> dict[str, Any]:
    """Return where on a line of time the events of a task stand, in hundredths."""
    events = state["Events"] or []
    if not events:
        return {"events": [], "end": now}
    first = events[0]["Time"]
    last = nanoseconds(state["FinishedAt"]) or now
    length = max(last - first, 1)
    placed = [
        {**one, "At": min(max(round(100 * (one["Time"] - first) / length), 0), 100)}
        for one in events
    ]
    return {"events": placed, "begin": first, "end": last}


@page("terminal.html")
async def terminal(visit: Visit) -> Found:
    """Offer a terminal in a task, for a command or for an action that the job declares.

    The page's script talks with the route of the API that the command line talks with.
    """
    base = await frame(visit, "terminal")
    alloc = base["alloc"]
    running = [name for name, state in base["tasks"].items() if state["State"] == "running"]
    wanted, name = visit.query.text("task"), visit.query.text("action")
    task = wanted if wanted in running else next(iter(running), "")
    asked = {"tty": "true", "ws_handshake": "true"}
    if not name:
        path = ("/ui/v1/client/allocation/", alloc["ID"], "/exec")
        return {**base, "running": running, "task": task, "talk": words.address(*path, **asked)}
    action = _action(alloc, wanted, name)
    asked |= {"namespace": alloc["Namespace"], "allocID": alloc["ID"], "task": wanted}
    talk = words.address("/ui/v1/job/", alloc["JobID"], "/action", **asked, action=name)
    still = wanted in running
    return {**base, "running": still, "task": wanted, "action": action, "talk": talk}


def _action(alloc: dict[str, Any], task_name: str, name: str) -> dict[str, Any]:
    """Return an action of a task. Raises `NotFound`."""
    for group in alloc["Job"]["TaskGroups"]:
        for task in group["Tasks"] if group["Name"] == alloc["TaskGroup"] else ():
            for action in (task["Actions"] or ()) if task["Name"] == task_name else ():
                if action["Name"] == name:
                    return dict(action)
    raise NotFound(f"action {name} not found in task {task_name}")


@page("files.html")
async def files(visit: Visit) -> Found:
    """Show a directory of an allocation."""
    base = await frame(visit, "files")
    path = PurePosixPath("/", visit.query.text("path"))
    found = await visit.get(words.address("/v1/client/fs/ls/", visit["alloc_id"]), path=str(path))
    entries = sorted(found or (), key=lambda one: (not one["IsDir"], one["Name"]))
    parents = [] if path == PurePosixPath("/") else [*reversed(path.parents), path]
    return {**base, "path": str(path), "parents": parents, "entries": entries}


async def file(visit: Visit) -> Reply:
    """Give a file of an allocation. It is never shown as a page: a task has written it."""
    path = PurePosixPath("/", visit.query.text("path"))
    try:
        target = words.address("/v1/client/fs/cat/", visit["alloc_id"])
        found = await visit.ask("GET", target, path=str(path))
    except StewardError as error:
        return of_error(error)
    name = quote(path.name, safe="")
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Reply(
        body=found.body,
        stream=found.stream,
        content_type="application/octet-stream",
        headers=headers,
    )
