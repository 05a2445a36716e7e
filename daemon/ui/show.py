"""From what a page found to what the browser gets: templates, and what goes wrong on the way.

Templates escape everything that they are given; no part of a page is put together elsewhere.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache, wraps
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import ChainableUndefined, Environment, FileSystemLoader

from daemon.ui import paint, words
from daemon.version import VERSION
from daemon.web.reply import Reply, of_error
from daemon.web.visits import PLACE, Visit, apart
from storage.errors import Denied, Malformed, NotFound, StewardError
from storage.records import times
from storage.records.base import SECOND

HERE = Path(__file__).parent
HTML = "text/html; charset=utf-8"
SIGN_IN = f"{PLACE}sign-in"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_FAULT = 400  # what the API calls 500 for its old clients' sake is a mistake in what was asked

Found = Mapping[str, object]
Maker = Callable[[Visit], Awaitable[Found]]
Doer = Callable[[Visit], Awaitable[str]]
Handler = Callable[[Visit], Awaitable[Reply]]


class File(msgspec.Struct, frozen=True):
    """A file that pages load, and the mark that changes with it."""

    body: bytes
    kind: str
    mark: str


@cache
def files() -> dict[str, File]:
    """Return the files of the interface by name."""
    found = sorted((HERE / "static").iterdir())
    return {
        one.name: File(body, _KINDS[one.suffix], hashlib.sha256(body).hexdigest()[:16])
        for one in found
        if one.suffix in _KINDS and (body := one.read_bytes())
    }


async def static(visit: Visit) -> Reply:
    """Give a file of the interface."""
    found = files().get(visit["name"])
    if found is None:
        return Reply(status=404)
    current = visit.query.text("v") == found.mark
    headers = {"Cache-Control": _FOR_EVER if current else "no-cache"}
    return Reply(body=found.body, content_type=found.kind, headers=headers)


def page(template: str) -> Callable[[Maker], Handler]:
    """Make a page of what finds its content. Who must sign in first is shown the way."""

    def with_template(maker: Maker) -> Handler:
        @telling
        @wraps(maker)
        async def handler(visit: Visit) -> Reply:
            return await shown(visit, template, await maker(visit))

        return handler

    return with_template


def action(doer: Doer) -> Handler:
    """Make what a form does: it returns where the browser goes next."""

    @telling
    @wraps(doer)
    async def handler(visit: Visit) -> Reply:
        return gone_to(await doer(visit))

    return handler


def telling(handler: Handler) -> Handler:
    """Make a handler that shows what goes wrong in it."""

    @wraps(handler)
    async def told(visit: Visit) -> Reply:
        try:
            return await handler(visit)
        except StewardError as error:
            return await _failed(visit, error)

    return told


async def or_nothing(visit: Visit, path: str, **query: object) -> Any:  # noqa: ANN401  # JSON
    """Return what stands there, or None where nothing does or the visitor may not look."""
    try:
        return await visit.get(path, **query)
    except (Denied, Malformed, NotFound):
        return None


def back(visit: Visit, otherwise: str = PLACE) -> str:
    """Return where the form that was sent stands."""
    target = visit.form.get("back", "")
    return target if words.is_ours(target) else otherwise


def gone_to(target: str) -> Reply:
    """Return the answer that sends a browser elsewhere."""
    return Reply(status=303, headers={"Location": target})


async def shown(visit: Visit, template: str, found: Found, status: int = 200) -> Reply:
    """Return a page. A thread renders it: that takes as long as the page has lines."""
    known = {
        "visit": visit,
        "proof": visit.proof,
        "now": visit.now,
        "index": visit.request.parts.store.read(lambda db: db.last_index()),
        "here": visit.request.path,
        "namespace": visit.query.text("namespace"),
        **found,
    }
    body = await apart(_rendered, template, known)
    return Reply(body=body, status=status, content_type=HTML)


def _rendered(template: str, known: Found) -> bytes:
    return _environment().get_template(template).render(known).encode()


async def _failed(visit: Visit, error: StewardError) -> Reply:
    stranger = visit.session is None and visit.asks_for_tokens and not visit.is_unclear
    if isinstance(error, Denied) and stranger and visit.request.method == "GET":
        ended = "1" if visit.has_ended else ""
        target = visit.request.path
        return gone_to(words.address(SIGN_IN, next=target, ended=ended))
    status = status_of(error)
    return await shown(visit, "error.html", {"message": str(error), "status": status}, status)


def status_of(error: StewardError) -> int:
    """Return the status of a page that tells of an error."""
    status = of_error(error).status
    return status if status != 500 else _FAULT


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(
        url=words.address,
        command=words.command,
        counts=words.counts,
        ago=words.ago,
        file=lambda name: f"{PLACE}static/{name}?v={files()[name].mark}",
        version=VERSION,
        job_state=words.job_state,
        pieces=paint.pieces,
    )
    made.filters.update(
        short=words.short,
        size=words.size,
        span=words.span,
        moment=_moment,
        when=_when,
        whole=_whole,
        nanos=nanoseconds,
    )
    return made


def nanoseconds(text: str | None) -> int:
    """Return the moment that the wire writes as text; 0 when it names none."""
    return 0 if not text or text.startswith("0001-") else times.nanoseconds(text)


def _moment(nanos: int) -> str:
    """Return a moment as programs read it; the browser shows it in the reader's own time."""
    return datetime.fromtimestamp(nanos // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _when(nanos: int) -> str:
    return datetime.fromtimestamp(nanos // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _whole(value: Any) -> str:  # noqa: ANN401  # JSON
    """Return a document as people read it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
