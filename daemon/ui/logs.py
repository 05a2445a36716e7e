"""The log pages: the output of one task, or of all allocations of a job."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec

from daemon.ui import allocation, ansi, formatting, job
from daemon.ui.render import Found, page
from daemon.web.reply import JSON, TEXT, HandlerReply, of_error
from daemon.web.ui_session import UiRequest, build_in_thread
from storage.errors import StewardError

_LINES = 200  # lines of a log at the first load
_MORE = 500  # lines per request of the page's script
_CONTEXT = 2  # context lines around each match
_TAIL_OF_MANY = 4 * 1024  # bytes of each log, if many logs are shown
_STREAMS = ("stdout", "stderr")
_SHORT = len(b"{}\n")  # length of a response without lines

Lines = list[dict[str, Any]]


@page("logs.html")
async def of_task(ui_request: UiRequest) -> Found:
    """Show the log of a task: its end, the lines around a position, or the matches of a search."""
    base = await allocation.allocation_header(ui_request, "logs")
    query = ui_request.query
    task = query.text("task") or next(iter(base["tasks"]), "")
    stream_type = query.text("type")
    kind = stream_type if stream_type in _STREAMS else "all"
    context = {**base, "task": task, "kind": kind, "search": query.text("q")}
    if not task:
        return context
    parameters = {"task": task, "type": kind if kind in _STREAMS else ""}
    if query.text("q"):
        parameters |= {
            "contains": query.text("q"),
            "before": query.text("before"),
            "context": _CONTEXT,
        }
        answer = await ui_request.get(_path(ui_request, "search"), **parameters)
    else:
        positions = {name: query.text(name) for name in ("before", "after", "at")}
        answer = await ui_request.get(
            _path(ui_request, "lines"), lines=_LINES, **parameters, **positions
        )
        context["is_tail"] = not any(positions.values())
    return {
        **context,
        "found": answer,
        "lines": await build_in_thread(_styled, answer.get("Lines") or [], {}),
    }


def _path(ui_request: UiRequest, endpoint: str) -> str:
    return formatting.address(f"/v1/client/fs/{endpoint}/", ui_request["alloc_id"])


def _styled(lines: Lines, styles: dict[str, ansi.Style]) -> Lines:
    """Return lines, split into styled parts; `styles` has the current style of each stream."""
    styled = []
    for line in lines:
        stream = line.get("Log") or line["Stream"]
        pieces, after = ansi.styled(line.get("Text", ""), styles.get(stream, ansi.PLAIN))
        if not line.get("Unfinished"):  # an unfinished line is sent again
            styles[stream] = after
        styled.append({**line, "Text": "", "Pieces": pieces})
    return styled


async def task_lines(ui_request: UiRequest) -> HandlerReply:
    """Return styled lines of a log for the page's script: once, or as a stream."""
    return await _lines(
        ui_request, _path(ui_request, "lines"), {"task": ui_request.query.text("task")}
    )


async def _lines(ui_request: UiRequest, path: str, parameters: dict[str, object]) -> HandlerReply:
    query, kind = ui_request.query, ui_request.query.text("type")
    parameters |= {
        "type": kind if kind in _STREAMS else "",
        "lines": "" if query.text("follow") else _MORE,
        **{name: query.text(name) for name in ("before", "after")},
    }
    try:
        if query.text("follow"):
            answer = await ui_request.ask("GET", path, follow=True, **parameters)
            stream = _restyle_stream(answer.stream) if answer.stream else None
            return HandlerReply(stream=stream, content_type=JSON)
        page = await ui_request.get(path, **parameters)
    except StewardError as error:
        return of_error(error)
    return HandlerReply(body=await build_in_thread(_encoded, page, {}), content_type=JSON)


async def _restyle_stream(answers: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    styles: dict[str, ansi.Style] = {}
    async with aclosing(answers) as open_answers:  # type: ignore[type-var]  # a generator
        async for answer in open_answers:
            yield (
                await build_in_thread(_restyled, answer, styles) if len(answer) > _SHORT else answer
            )


def _restyled(answer: bytes, styles: dict[str, ansi.Style]) -> bytes:
    """Return a response with each line split into styled parts."""
    return _encoded(msgspec.json.decode(answer), styles) + b"\n"


def _encoded(page: dict[str, Any], styles: dict[str, ansi.Style]) -> bytes:
    return msgspec.json.encode({**page, "Lines": _styled(page.get("Lines") or [], styles)})


async def task_log(ui_request: UiRequest) -> HandlerReply:
    """Return a complete log as a file."""
    query, alloc_id = ui_request.query, ui_request["alloc_id"]
    task, kind = query.text("task"), query.text("type")
    path = formatting.address("/v1/client/fs/logs/", alloc_id)
    if kind not in _STREAMS:
        return _as_download(
            await _merged_streams(ui_request, alloc_id, task), f"{alloc_id[:8]}.{task}.txt"
        )
    try:
        answer = await ui_request.ask("GET", path, task=task, type=kind, plain=True)
    except StewardError as error:
        return of_error(error)
    return _as_download(answer, f"{alloc_id[:8]}.{task}.{kind}.txt")


async def _merged_streams(ui_request: UiRequest, alloc_id: str, task: str) -> HandlerReply:
    """Return both streams of a task merged by time."""
    try:
        alloc = await ui_request.get(formatting.address("/v1/allocation/", alloc_id))
        return await ui_request.ask(
            "GET",
            formatting.address("/v1/job/", alloc["JobID"], "/logs"),
            namespace=alloc["Namespace"],
            allocation=alloc_id,
            task=task,
            labels=False,
        )
    except StewardError as error:
        return of_error(error)


def _as_download(handler_reply: HandlerReply, name: str) -> HandlerReply:
    """Return a log as a file with this name."""
    if handler_reply.stream is None:
        return handler_reply
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return HandlerReply(stream=handler_reply.stream, content_type=TEXT, headers=headers)


@page("job_logs.html")
async def of_job(ui_request: UiRequest) -> Found:
    """Show the output of a job's newest allocations: the end, earlier lines, or search results."""
    base = await job.job_header(ui_request, "logs")
    query, state = ui_request.query, base["state"]
    assert isinstance(state, dict)  # noqa: S101  # it is JSON
    kind = query.text("type") if query.text("type") in _STREAMS else "all"
    parameters: dict[str, object] = {"namespace": base["namespace"]}
    parameters["type"] = kind if kind in _STREAMS else ""
    positions = {name: query.text(name) for name in ("before", "after")}
    if query.text("q"):
        parameters |= {
            "contains": query.text("q"),
            "before": query.text("before"),
            "context": _CONTEXT,
        }
        answer = await ui_request.get(job.job_url(ui_request, "/logs/search"), **parameters)
    else:
        answer = await ui_request.get(
            job.job_url(ui_request, "/logs/lines"), lines=_LINES, **parameters, **positions
        )
    return {
        **base,
        "kind": kind,
        "search": query.text("q"),
        "found": answer,
        "lines": await build_in_thread(_styled, answer.get("Lines") or [], {}),
        "is_tail": not query.text("q") and not any(positions.values()),
        "newest_run": (state.get("Runs") or {}).get("LastRunID", ""),
    }


async def job_lines(ui_request: UiRequest) -> HandlerReply:
    """Return styled lines of the log of a job for the page's script."""
    namespace = ui_request.query.text("namespace") or "default"
    return await _lines(
        ui_request, job.job_url(ui_request, "/logs/lines"), {"namespace": namespace}
    )


async def job_log(ui_request: UiRequest) -> HandlerReply:
    """Return the output of a job's allocations, as a complete file or as a stream.

    The stream contains the end of each log, and then new output.
    """
    path, namespace = (
        job.job_url(ui_request, "/logs"),
        ui_request.query.text("namespace") or "default",
    )
    is_file = bool(ui_request.query.text("download"))
    tail = {} if is_file else {"follow": True, "origin": "end", "offset": _TAIL_OF_MANY}
    try:
        answer = await ui_request.ask("GET", path, namespace=namespace, **tail)
    except StewardError as error:
        return of_error(error)
    if is_file:
        return _as_download(answer, f"{ui_request['job_id']}.txt")
    return HandlerReply(stream=_plain(answer.stream) if answer.stream else None, content_type=TEXT)


async def _plain(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield lines without escape sequences."""
    async with aclosing(chunks) as open_chunks:  # type: ignore[type-var]  # a generator
        async for chunk in open_chunks:
            yield await build_in_thread(_plain_lines, chunk)


def _plain_lines(chunk: bytes) -> bytes:
    lines = chunk.decode(errors="replace").split("\n")
    return "\n".join(map(ansi.plain, lines)).encode()
