"""Calendars: list, read, store, delete, import, and show their days."""

from datetime import UTC, date, datetime
from http import HTTPStatus

import msgspec

from daemon.api.paging import Listing, query_factory, show
from daemon.jobs import calendars as rules
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage import garbage
from storage.errors import Conflict, Malformed, NotFound
from storage.queries import calendars
from storage.queries.pages import HIGHEST
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND, Record
from storage.records.calendar import Calendar, CalendarListing, CalendarVersion
from storage.records.codec import encode

_DAYS = 14  # days shown by default
_YEARS = 5  # years imported by default, including the current one


class CalendarResponse(Record, frozen=True, kw_only=True):
    """The version of a calendar after a write, and the index of the write."""

    version: int
    index: int


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the calendars."""
    expression = request.query.text("filter")
    matches = compile_filter(expression, CalendarListing) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, calendar_listing: CalendarListing) -> bool:
        if not request.sees(calendar_listing.namespace):
            return False
        return matches is None or matches(msgspec.to_builtins(calendar_listing))

    listing = Listing[CalendarListing](
        rows=lambda db, start, reverse: calendars.page(db, to_page_request(start, reverse)),
        key=lambda calendar: (calendar.namespace, calendar.name),
        line=lambda _, calendar: encode(calendar),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index(calendars.TABLE), 1))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a calendar: its latest version, or the one in `version`."""
    calendar = calendars.find(db, request.namespace, request["name"])
    number = request.query.own_natural("version")
    if calendar is not None and number is not None and number != calendar.version:
        start = (min(number, HIGHEST),)
        stored_version = next(
            calendars.versions(db, request.namespace, request["name"], start), None
        )
        calendar = (
            stored_version.calendar
            if stored_version is not None and stored_version.version == number
            else None
        )
    if calendar is None:
        words = "calendar not found" if number is None else f"version {number} not found"
        raise NotFound(words, index=db.table_index(calendars.TABLE))
    return reply.read_reply(calendar, calendar.modify_index)


def list_versions(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the stored versions of a calendar with their authors, newest first."""
    namespace, name, index = request.namespace, request["name"], db.table_index(calendars.TABLE)
    if calendars.find(db, namespace, name) is None:
        raise NotFound("calendar not found", index=index)
    listing = Listing[CalendarVersion](
        rows=lambda db, start, reverse: calendars.versions(
            db, namespace, name, start, reverse=reverse
        ),
        key=lambda version: (version.version,),
        line=lambda _, version: encode(version),
        newest_first=True,
    )
    return show(listing, request.query, db, index)


def days(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the days of a calendar from `from` to `to`, and whether it is open now."""
    first, last = _date(request, "from"), _date(request, "to")
    if last is not None and first is None:
        raise Malformed('"to" is given without "from": also give "from", the first day')
    number = _DAYS if first is None or last is None else (last - first).days + 1
    if number < 1:
        raise Malformed(f"to = {last} is before from = {first}")
    described = rules.days(
        db,
        request.namespace,
        request["name"],
        first=first,
        number=number,
        now=request.parts.clock.now(),
    )
    return reply.read_reply(described, db.table_index(calendars.TABLE))


def _date(request: Request, name: str) -> date | None:
    text = request.query.text(name)
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if day.year not in range(1970, 2200):
        raise Malformed(f"{name} = {text[:40]!r} must be a date such as 2026-12-25")
    return day


async def write(request: Request) -> HandlerReply:
    """Create or update the calendar in the path."""
    parts = request.parts
    body = await request.decoded(Calendar)
    if body.name not in ("", request["name"]):
        raise Malformed(f"Name is {body.name[:200]!r}, but the path has {request['name'][:200]!r}")
    if body.namespace not in ("", request.namespace):
        raise Malformed(
            f"Namespace is {body.namespace[:200]!r}, but the request is for {request.namespace!r}"
        )
    calendar = msgspec.structs.replace(body, name=request["name"], namespace=request.namespace)
    cas = request.query.own_natural("cas")
    try:
        done = await rules.apply(parts.store, calendar, enforced=cas, now=parts.clock.now())
    except Conflict as error:
        return reply.text(str(error), HTTPStatus.CONFLICT)
    return HandlerReply(
        body=CalendarResponse(version=done.version, index=done.index), index=done.index
    )


async def remove(request: Request) -> HandlerReply:
    """Delete a calendar that no job and no other calendar uses."""
    store, cas = request.parts.store, request.query.own_natural("cas")
    try:
        done = await rules.remove(store, request.namespace, request["name"], enforced=cas)
    except Conflict as error:
        return reply.text(str(error), HTTPStatus.CONFLICT)
    return HandlerReply(index=done)


async def import_file(request: Request) -> HandlerReply:
    """Add the whole-day events of the iCalendar file in the body as holidays."""
    parts, content = request.parts, request.body
    this_year = datetime.fromtimestamp(parts.clock.now() // SECOND, UTC).year
    first, last = request.query.own_natural("first_year"), request.query.own_natural("last_year")
    first = this_year if first is None else first
    last = first + _YEARS - 1 if last is None else last

    def work() -> rules.ImportedDays:
        from daemon.jobs import calendar_import  # imported late, in the thread: it takes 200 ms

        return calendar_import.read(content, first, last)

    async with parts.admission.slot(request.client):
        calendar = await garbage.in_thread(work)
    done = await rules.import_holidays(
        parts.store,
        request.namespace,
        request["name"],
        calendar,
        now=parts.clock.now(),
    )
    return HandlerReply(body=done, index=done.index)
