"""What tasks print: of one task, and of all allocations of a job together."""

from urllib.parse import quote

from daemon.ui import allocation, job, words
from daemon.ui.show import Found, page
from daemon.web.reply import TEXT, Reply, of_error
from daemon.web.visits import Visit
from storage.errors import StewardError

_TAIL = 64 * 1024  # bytes of a log that a page begins with
_TAIL_OF_MANY = 4 * 1024  # of each of many
_STREAMS = ("stdout", "stderr")


@page("logs.html")
async def of_task(visit: Visit) -> Found:
    """Show what a task prints, while it prints it."""
    base = await allocation.frame(visit, "logs")
    task = visit.query.text("task") or next(iter(base["tasks"]), "")
    kind = visit.query.text("type")
    return {**base, "task": task, "kind": kind if kind in _STREAMS else "stdout"}


async def task_log(visit: Visit) -> Reply:
    """Give what a task has printed: its end and what follows, or all of it as a file."""
    query, alloc_id = visit.query, visit["alloc_id"]
    task, kind = query.text("task"), query.text("type") or "stdout"
    path = words.address("/v1/client/fs/logs/", alloc_id)
    name = f"{alloc_id[:8]}.{task}.{kind}.txt"
    return await _log(visit, path, name, _TAIL, task=task, type=kind, plain=True)


@page("job_logs.html")
async def of_job(visit: Visit) -> Found:
    """Show what all allocations of a job print, while they print it."""
    return await job.frame(visit, "logs")


async def job_log(visit: Visit) -> Reply:
    """Give what the allocations of a job have printed, line by line."""
    namespace = visit.query.text("namespace") or "default"
    name = f"{visit['job_id']}.txt"
    return await _log(visit, job.at(visit, "/logs"), name, _TAIL_OF_MANY, namespace=namespace)


async def _log(visit: Visit, path: str, name: str, tail: int, **asked: object) -> Reply:
    """Give a log: its end and what follows, or with `download` all of it as a file."""
    headers = {}
    if visit.query.text("download"):
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    else:
        asked |= {"follow": True, "origin": "end", "offset": tail}
    try:
        found = await visit.ask("GET", path, **asked)
    except StewardError as error:
        return of_error(error)
    return Reply(stream=found.stream, content_type=TEXT, headers=headers)
