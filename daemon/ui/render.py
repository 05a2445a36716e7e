"""Rendering of pages from templates, and error pages.

Templates escape all values. No other code builds HTML, except for the labels of table cells
(`tables.py`).
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, wraps
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import trio
from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from msgspec import structs

from daemon.text.queue_slots import slots_in_use
from daemon.text.task_failure import plain_reason
from daemon.ui import formatting, highlight, navigation, tables
from daemon.version import VERSION
from daemon.web.reply import HandlerReply, of_error
from daemon.web.ui_session import DENSITY_COOKIE, PLACE, UiRequest, build_in_thread
from storage.errors import Denied, Malformed, NotFound, StewardError
from storage.records import times
from storage.records.allocation import is_overtime
from storage.records.base import SECOND

HERE = Path(__file__).parent
HTML = "text/html; charset=utf-8"
SIGN_IN = f"{PLACE}sign-in"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_A_YEAR = 31536000  # seconds
_BANNERS = 5  # freezes that a page shows
_LEVELS = 6  # levels of nested values that the digest splits: down to the steps of a run
_LONG_LIST = 64  # elements; the small elements of a longer list are not split further
_CONTAINERS = (dict, list)
_PROOF_MARK = secrets.token_hex(16)  # replaced by the CSRF token of each viewer of a shared page
_NOT_SHOWN = frozenset({"ui_request", "proof", "now", "index"})
_FAULT = 400  # the API reports some errors of the caller as 500, for old clients

Found = Mapping[str, object]
Maker = Callable[[UiRequest], Awaitable[Found]]
Doer = Callable[[UiRequest], Awaitable[str]]
Handler = Callable[[UiRequest], Awaitable[HandlerReply]]


class StaticFile(msgspec.Struct, frozen=True):
    """A static file that pages load, such as a script; `mark` is a hash of its content."""

    body: bytes
    kind: str
    mark: str


@cache
def files() -> dict[str, StaticFile]:
    """Return the static files by name."""
    paths = sorted((HERE / "static").iterdir())
    return {
        path.name: StaticFile(body, _KINDS[path.suffix], hashlib.sha256(body).hexdigest()[:16])
        for path in paths
        if path.suffix in _KINDS and (body := path.read_bytes())
    }


async def static(ui_request: UiRequest) -> HandlerReply:
    """Return a static file."""
    file = files().get(ui_request["name"])
    if file is None:
        return HandlerReply(status=404)
    current = ui_request.query.text("v") == file.mark
    headers = {"Cache-Control": _FOR_EVER if current else "no-cache"}
    return HandlerReply(body=file.body, content_type=file.kind, headers=headers)


def page(template: str, *, is_shared: bool = False) -> Callable[[Maker], Handler]:
    """Return a decorator that makes a handler from a function; the function returns a page's data.

    If `is_shared` is true, browsers with the same token get the same rendering when they reload the
    page (`shared_pages.py`).
    """

    def with_template(maker: Maker) -> Handler:
        @with_error_message
        @wraps(maker)
        async def handler(ui_request: UiRequest) -> HandlerReply:
            if is_shared and ui_request.shown and not ui_request.is_reopened:
                return await _reloaded(ui_request, template, maker)
            index = _last_index(ui_request)
            page_data = await _known(ui_request, await maker(ui_request), index)
            if ui_request.is_reopened:  # a reload would lose what the user entered
                return await _reply(template, {**page_data, "follow": ""})
            tag = await build_in_thread(_tag, page_data) if is_shared else ""
            return await _reply(template, {**page_data, "tag": tag})

        return handler

    return with_template


async def _reloaded(ui_request: UiRequest, template: str, maker: Maker) -> HandlerReply:
    """Answer a browser that shows an older version of a page.

    The answer is the page, or 304 if the new page looks the same.
    """
    request, session = ui_request.request, ui_request.session
    key = (
        request.path,
        *request.query.pairs,
        request.caller.token.accessor,
        session is None,
        ui_request.is_compact,
        ui_request.is_unclear,
    )
    shared = ui_request.shared_pages.find(key, request.caller.grant, trio.current_time())
    async with shared.lock:
        if shared.known is None:
            ui_request.proof_mark = _PROOF_MARK
            shared.index = _last_index(ui_request)
            page_data = await _known(ui_request, await maker(ui_request), shared.index)
            shared.tag = await build_in_thread(_tag, page_data)
            shared.known = {**page_data, "tag": shared.tag}
        tag = shared.tag.replace(_PROOF_MARK, ui_request.session_proof)
        if tag and tag == ui_request.shown:
            return HandlerReply(status=304, index=shared.index)
        if not shared.body:
            shared.body = await build_in_thread(_rendered, template, shared.known)
            shared.known = {}  # no longer needed, and it may be large
    body = shared.body.replace(_PROOF_MARK.encode(), ui_request.session_proof.encode())
    return HandlerReply(body=body, content_type=HTML)


def _last_index(ui_request: UiRequest) -> int:
    """Return the index of the last write.

    The index is read before the data of a page. So a page that compares its index with the newest
    index misses no change.
    """
    return ui_request.request.parts.store.read(lambda db: db.last_index())


def _tag(page_data: Found) -> str:
    """Return the tag of a page's content: a hash of its data, a dot, and the session's CSRF token.

    Return an empty string if the data cannot be hashed. This function runs in a thread, so it does
    not read the store. The hash includes the current minute, because pages show some durations in
    minutes. It also includes a value unique to this process, because another process may have other
    templates.
    """
    ui_request: Any = page_data["ui_request"]
    minute = ui_request.now // (60 * SECOND)
    caller_key = (_PROOF_MARK, ui_request.request.caller.grant.serial, minute)
    values = {name: value for name, value in page_data.items() if name not in _NOT_SHOWN}
    digest = hashlib.blake2b(digest_size=12)
    levels = 0 if ui_request.is_short else _LEVELS
    try:
        for chunk in _json_chunks((values, caller_key), levels):
            digest.update(chunk)
    except TypeError:  # a page with objects that JSON does not have
        return ""
    return f"{digest.hexdigest()}.{ui_request.proof}"


def _json_chunks(value: object, levels: int) -> Iterator[bytes]:
    """Yield the JSON of a value in chunks. Lists and objects are split down to `levels` levels.

    Encoding a large value in one call would block the interpreter for a long time. A short value is
    encoded in one call, which takes a tenth of the time.
    """
    if levels and isinstance(value, dict | list | tuple):
        yield b"%c%d" % (b"{" if isinstance(value, dict) else b"[", len(value))
        is_long = len(value) > _LONG_LIST
        for child in value.items() if isinstance(value, dict) else value:
            yield from _json_chunks(child, 0 if is_long and not _is_large(child) else levels - 1)
    else:
        yield msgspec.json.encode(value) + b","


def _is_large(value: object) -> bool:
    """Return whether a value has a long list or object as a direct member."""
    if not isinstance(value, dict | list | tuple):
        return False
    members = value.values() if isinstance(value, dict) else value
    for member in members:  # noqa: SIM110  # a generator would take three times as long
        if isinstance(member, _CONTAINERS) and len(member) > _LONG_LIST:
            return True
    return False


def action(action_handler: Doer) -> Handler:
    """Turn a form action into a handler; the action returns the URL of the next page."""

    @with_error_message
    @wraps(action_handler)
    async def handler(ui_request: UiRequest) -> HandlerReply:
        return redirect_to(await action_handler(ui_request))

    return handler


def form_action(place: Callable[[UiRequest], str]) -> Callable[[Doer], Handler]:
    """Return a decorator that turns the action of a form into a handler.

    If the API rejects the form, the handler shows the form again on its page. `place` returns the
    URL of that page.
    """

    def decorated(doer: Doer) -> Handler:
        @with_error_message
        @keeps_form(place)
        @wraps(doer)
        async def handler(ui_request: UiRequest) -> HandlerReply:
            return redirect_to(await doer(ui_request))

        return handler

    return decorated


def keeps_form(place: Callable[[UiRequest], str]) -> Callable[[Handler], Handler]:
    """Return a decorator for form handlers. If the API rejects a form, the user sees it again.

    The form then contains the entered values, and shows the error at the field that caused it.
    `place` returns the URL of the page with the form.
    """

    def decorated(handler: Handler) -> Handler:
        @wraps(handler)
        async def kept(ui_request: UiRequest) -> HandlerReply:
            try:
                return await handler(ui_request)
            except Denied:
                raise
            except StewardError as error:
                reply = await ui_request.reopen(place(ui_request), str(error))
                if reply.status != 200:  # the object of the form was deleted
                    raise
                return structs.replace(reply, status=status_of(error))

        return kept

    return decorated


async def not_found(ui_request: UiRequest) -> HandlerReply:
    """Show that there is no page at this URL."""
    return await _failed(ui_request, NotFound(f"there is no page {ui_request.request.path}"))


def with_error_message(handler: Handler) -> Handler:
    """Wrap a handler so that its errors are shown as a page."""

    @wraps(handler)
    async def with_error_page(ui_request: UiRequest) -> HandlerReply:
        try:
            return await handler(ui_request)
        except StewardError as error:
            return await _failed(ui_request, error)

    return with_error_page


async def optional(ui_request: UiRequest, path: str, **query: object) -> Any:  # noqa: ANN401  # JSON
    """Return the document at a path, or None if it does not exist or access is denied."""
    try:
        return await ui_request.get(path, **query)
    except (Denied, Malformed, NotFound):
        return None


def return_url(ui_request: UiRequest, otherwise: str = PLACE) -> str:
    """Return the URL of the page whose form was sent; `otherwise` if the form names no page."""
    target = ui_request.form.get("back", "")
    return target if formatting.is_internal_url(target) else otherwise


@with_error_message
async def set_density(ui_request: UiRequest) -> HandlerReply:
    """Choose compact or normal pages, for this browser."""
    word = "compact" if ui_request.form.get("density") == "compact" else "normal"
    cookie = f"{DENSITY_COOKIE}={word}; Path=/ui; HttpOnly; SameSite=Strict; Max-Age={_A_YEAR}"
    headers = {"Location": return_url(ui_request), "Set-Cookie": cookie}
    return HandlerReply(status=303, headers=headers)


def redirect_to(target: str) -> HandlerReply:
    """Return a redirect."""
    return HandlerReply(status=303, headers={"Location": target})


async def render_page(
    ui_request: UiRequest, template: str, context: Found, status: int = 200
) -> HandlerReply:
    """Return a page. A thread renders it, because rendering a long page takes time."""
    page_data = await _known(ui_request, context, _last_index(ui_request))
    return await _reply(template, page_data, status)


async def _reply(template: str, page_data: Found, status: int = 200) -> HandlerReply:
    body = await build_in_thread(_rendered, template, page_data)
    return HandlerReply(body=body, status=status, content_type=HTML)


async def _known(ui_request: UiRequest, context: Found, index: int) -> dict[str, object]:
    """Return all values that the template of a page needs."""
    return {
        "frozen": await _frozen(ui_request),
        "ui_request": ui_request,
        "proof": ui_request.proof,
        "now": ui_request.now,
        "index": index,
        "here": ui_request.request.path,
        "namespace": ui_request.query.text("namespace"),
        **context,
    }


async def _frozen(ui_request: UiRequest) -> object:
    """Return the active freezes that the user may see, for the banner of each page."""
    freezes = await optional(
        ui_request, "/v1/freezes", namespace="*", active="true", per_page=_BANNERS
    )
    return freezes or ()


def _rendered(template: str, page_data: Found) -> bytes:
    page = _environment().get_template(template).render(page_data)
    return tables.label_cells(page).encode()


async def _failed(ui_request: UiRequest, error: StewardError) -> HandlerReply:
    ui_request.proof_mark = ""  # an error page is not shared
    stranger = (
        ui_request.session is None and ui_request.asks_for_tokens and not ui_request.is_unclear
    )
    if isinstance(error, Denied) and stranger and ui_request.request.method == "GET":
        ended = "1" if ui_request.has_ended else ""
        target = ui_request.request.path
        return redirect_to(formatting.address(SIGN_IN, next=target, ended=ended))
    status = status_of(error)
    shown = {
        "message": str(error),
        "status": status,
        "needed": ui_request.denied_capability if isinstance(error, Denied) else "",
        "above": navigation.place_above(ui_request.request.path),
        "back": return_url(ui_request, "") if ui_request.request.method == "POST" else "",
        "name": unquote(ui_request.request.path.rpartition("/")[2]),
    }
    return await render_page(ui_request, "error.html", shown, status)


def status_of(error: StewardError) -> int:
    """Return the status of an error page."""
    status = of_error(error).status
    return status if status != 500 else _FAULT


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(
        url=formatting.address,
        command=formatting.command,
        counts=formatting.counts,
        link=tables.link,
        ago=formatting.relative_time,
        file=lambda name: f"{PLACE}static/{name}?v={files()[name].mark}",
        version=VERSION,
        places=navigation.PLACES,
        is_current=navigation.is_current,
        pieces=highlight.highlight,
        slots_in_use=slots_in_use,
        is_overtime=is_overtime,
    )
    environment.filters.update(
        short=formatting.short,
        person=formatting.person,
        size=formatting.format_size,
        span=formatting.format_duration,
        moment=_machine_time,
        when=_format_time,
        exact=_exact_time,
        whole=_whole,
        nanos=nanoseconds,
        plain_reason=plain_reason,
    )
    return environment


def nanoseconds(text: str | None) -> int:
    """Return a time of the API in nanoseconds; 0 if it is missing."""
    return 0 if not text or text.startswith("0001-") else times.nanoseconds(text)


def _machine_time(nanos: int) -> str:
    """Return a time in machine-readable form, which the browser converts to local time."""
    return f"{_seconds(nanos):%Y-%m-%dT%H:%M:%S}{_fraction(nanos)}Z"


def _format_time(nanos: int) -> str:
    """Return a time as text, without a fraction of a second."""
    return f"{_seconds(nanos):%Y-%m-%d %H:%M:%S} UTC"


def _exact_time(nanos: int) -> str:
    """Return a time as text, with its milliseconds unless they are 0."""
    return f"{_seconds(nanos):%Y-%m-%d %H:%M:%S}{_fraction(nanos)} UTC"


def _seconds(nanos: int) -> datetime:
    return datetime.fromtimestamp(nanos // SECOND, UTC)


def _fraction(nanos: int) -> str:
    milliseconds = 1000 * (nanos % SECOND) // SECOND
    return f".{milliseconds:03}" if milliseconds else ""


def _whole(value: Any) -> str:  # noqa: ANN401  # JSON
    """Return a document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
