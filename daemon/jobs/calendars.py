"""Calendars: store, delete, import, and list days."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial

import msgspec

from daemon.flow import calendars as rules
from daemon.text.go_format import multi_error, quote
from daemon.text.hints import Hints
from storage import garbage
from storage.errors import Conflict, Malformed, NotFound
from storage.queries import calendars, namespaces
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.calendar import (
    Calendar,
    CalendarDays,
    CalendarImport,
    OpenDay,
)
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

MAX_CALENDARS = 1000  # calendars of a namespace
MAX_DAYS_SHOWN = 400
_SHOWN_NAMES = 5
_ANY_INDEX = None


class StoredCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a calendar after a write, and the index of the write."""

    version: int
    index: int


async def apply(
    store: Store, calendar: Calendar, *, enforced: int | None = _ANY_INDEX, now: int
) -> StoredCalendar:
    """Store a calendar as a new version, unless it is unchanged.

    `enforced` is the modify index that the stored calendar must have; 0 means that no calendar with
    this name may exist. Raises `Malformed` or `Conflict`.
    """
    await garbage.in_thread(partial(_check, calendar))
    work = partial(_put, calendar=calendar, enforced=enforced, now=now)
    return await store.write(work, is_long=bool(_parts(calendar)))


def _check(calendar: Calendar) -> None:
    if errors := list(rules.faults(calendar)):
        raise Malformed(f"invalid calendar {quote(calendar.name[:200])}: {multi_error(errors)}")


def _put(tx: Transaction, *, calendar: Calendar, enforced: int | None, now: int) -> StoredCalendar:
    namespace, name = calendar.namespace, calendar.name
    if not namespaces.exists(tx, namespace):
        raise Malformed(f"calendar {quote(name)} is in nonexistent namespace {quote(namespace)}")
    before = calendars.find(tx, namespace, name)
    _check_index(before, name, enforced)
    if before is None and calendars.number(tx, namespace) >= MAX_CALENDARS:
        raise Malformed(f"namespace {quote(namespace)} has {MAX_CALENDARS} calendars, the maximum")
    _check_parts(tx, calendar, before)
    complete = msgspec.structs.replace(
        calendar,
        version=before.version + 1 if before else 1,
        create_index=before.create_index if before else 0,
        modify_index=0,
    )
    if before is not None and _is_unchanged(before, complete):
        return StoredCalendar(version=before.version, index=before.modify_index)
    calendars.put(tx, complete, person=tx.person, now=now)
    return StoredCalendar(version=complete.version, index=tx.index)


def _is_unchanged(before: Calendar, after: Calendar) -> bool:
    return before == msgspec.structs.replace(
        after, version=before.version, modify_index=before.modify_index
    )


def _check_index(before: Calendar | None, name: str, enforced: int | None) -> None:
    if enforced is None:
        return
    if before is None and enforced:
        raise Conflict(f"calendar {quote(name)} does not exist; cas = {enforced} requires it")
    if before is not None and before.modify_index != enforced:
        raise Conflict(
            f"calendar {quote(name)} has modify index {before.modify_index}; cas = {enforced} "
            "expects another one: read the calendar again"
        )


def _parts(calendar: Calendar) -> list[str]:
    return [*(calendar.only or ()), *(calendar.except_ or ())]


def _check_parts(tx: Transaction, calendar: Calendar, before: Calendar | None) -> None:
    """Raise `Malformed` if a calendar refers to unknown calendars, or to itself.

    Also raise it if the calendar, or a calendar that uses it, would refer to too many calendars. A
    write that adds no reference is not checked.
    """
    namespace, parts = calendar.namespace, _parts(calendar)
    if set(parts) <= set(_parts(before) if before else ()):
        return
    calendar_names = calendars.names(tx, namespace)
    for name in parts:
        if name not in calendar_names:
            raise Malformed(_unknown(name, calendar_names, Hints()))
    references = calendars.references(tx, namespace, calendar.name, parts)
    references[calendar.name] = set(parts)
    for name in parts:
        if calendar.name in _reached(references, name, most=len(calendar_names)):
            raise Malformed(
                f"calendar {quote(calendar.name)} cannot refer to {quote(name)}, which refers to "
                f"{quote(calendar.name)}"
            )
    used_by: dict[str, set[str]] = {}
    for name, names in references.items():
        for part in names:
            used_by.setdefault(part, set()).add(name)
    for name in (
        calendar.name,
        *sorted(_reached(used_by, calendar.name, most=len(calendar_names))),
    ):
        if fault := _reference_fault(references, name):
            user = (
                ""
                if name == calendar.name
                else f"calendar {quote(name)}, which uses {quote(calendar.name)}, "
            )
            raise Malformed(
                f"calendar {quote(calendar.name)} cannot refer to {_listed(parts)}: "
                f"{user or 'it '}would {fault}"
            )


def _reference_fault(references: Mapping[str, set[str]], name: str) -> str:
    """Return which limit a calendar's references exceed, as the rest of a message after "would".

    The result is empty if they exceed no limit.
    """
    if len(_reached(references, name, most=rules.MAX_PARTS)) > rules.MAX_PARTS:
        return (
            f"refer to more than {rules.MAX_PARTS} calendars, directly or through others: use fewer"
        )
    level, depth = references.get(name, set()), 0
    while level and depth <= rules.MAX_DEPTH:
        level = set[str]().union(*(references.get(part, ()) for part in level))
        depth += 1
    if depth > rules.MAX_DEPTH:
        return (
            f"refer to calendars in a chain of more than {rules.MAX_DEPTH}: refer to fewer of them "
            "through others"
        )
    return ""


def _reached(references: Mapping[str, set[str]], name: str, *, most: int) -> set[str]:
    """Return the names of the calendars that a calendar refers to, directly or indirectly.

    The result may be incomplete if it has more than `most` names.
    """
    reached, coming = set[str](), [name]
    while coming and len(reached) <= most:
        added = references.get(coming.pop(), set()) - reached
        reached |= added
        coming += added
    return reached


def _unknown(name: str, calendar_names: list[str], hints: Hints) -> str:
    return f"unknown calendar {quote(name)}{hints.of(name, calendar_names)}"


def _listed(names: Sequence[str]) -> str:
    more = " and others" if len(names) > _SHOWN_NAMES else ""
    return f"{', '.join(map(quote, names[:_SHOWN_NAMES]))}{more}"


def unknown(db: ReadSnapshot, namespace: str, names: frozenset[str]) -> Iterator[str]:
    """Yield an error for each name without a calendar in a namespace."""
    hints, calendar_names = Hints(), calendars.names(db, namespace)
    for name in sorted(names - {*calendar_names}):
        yield _unknown(name, calendar_names, hints)


async def remove(
    store: Store, namespace: str, name: str, *, enforced: int | None = _ANY_INDEX
) -> int:
    """Delete an unused calendar; return the index of the write.

    Raises `NotFound`, or `Conflict` with the jobs and calendars that use it.
    """

    def write(tx: Transaction) -> int:
        before = calendars.find(tx, namespace, name)
        if before is None:
            raise NotFound(f"calendar {quote(name)} not found", index=tx.index)
        _check_index(before, name, enforced)
        jobs, other_calendars = calendars.users(tx, namespace, name, _SHOWN_NAMES + 1)
        for kind, users in (("jobs", jobs), ("calendars", other_calendars)):
            if users:
                raise Conflict(
                    f"calendar {quote(name)} is used by {kind} {_listed(users)}: change or stop "
                    "them first"
                )
        calendars.remove(tx, before)
        return tx.index

    return await store.write(write)


# --- days ---


def days(
    db: ReadSnapshot, namespace: str, name: str, *, first: date | None, number: int, now: int
) -> CalendarDays:
    """Return `number` days of a calendar from `first` on, by default from today. May take long.

    Raises `NotFound`, or `Malformed` for more than `MAX_DAYS_SHOWN` days.
    """
    if not 0 <= number <= MAX_DAYS_SHOWN:
        raise Malformed(f"{number} days were requested; the maximum is {MAX_DAYS_SHOWN}")
    calendar_documents = calendars.documents(db, namespace, name)
    if name not in calendar_documents.documents:
        raise NotFound(f"calendar {quote(name)} not found", index=db.table_index(calendars.TABLE))
    try:
        calendar = rules.compiled(name, calendar_documents.documents)
    except rules.UnknownCalendar as error:
        raise Malformed(str(error)) from error
    openings = rules.Openings(calendar)
    reason = openings.why_closed(now)
    opening = openings.next_open(now) if reason else None
    day = first or rules.local_date(now, calendar.zone)

    def shown(moment: int) -> str:
        return rfc3339(moment // SECOND * SECOND, calendar.zone)

    return CalendarDays(
        name=name,
        namespace=namespace,
        version=calendar.version,
        is_open=not reason,
        reason=calendar.why_closed(now),
        next_opening="" if opening is None else shown(opening),
        searched_until=shown(openings.searched_until) if reason and opening is None else "",
        days=[_shown(calendar, day + timedelta(days=number)) for number in range(number)],
    )


def _shown(calendar: rules.CompiledCalendar, day: date) -> OpenDay:
    spans = calendar.day_spans(day)
    return OpenDay(
        date=day.isoformat(),
        is_open=bool(spans),
        reason="" if spans else calendar.why_closed_on(day),
        spans=[
            [rfc3339(begin, calendar.zone), rfc3339(end, calendar.zone)] for begin, end in spans
        ],
    )


# --- import ---


class ImportedDays(msgspec.Struct, frozen=True):
    """The days of a file with their names, and the skipped events with the reasons."""

    holidays: dict[str, str]
    skipped: list[str]


async def import_holidays(
    store: Store,
    namespace: str,
    name: str,
    imported_days: ImportedDays,
    *,
    now: int,
) -> CalendarImport:
    """Add holidays to a calendar, which is created if it does not exist.

    If the calendar already has a holiday on a day, the holiday's name in the file replaces the old
    name. Raises `Malformed`.
    """

    def write(tx: Transaction) -> CalendarImport:
        before = calendars.find(tx, namespace, name) or Calendar(name=name, namespace=namespace)
        holidays_before = before.holidays or {}
        after = msgspec.structs.replace(
            before, holidays=dict(sorted({**holidays_before, **imported_days.holidays}.items()))
        )
        _check(after)
        done = _put(tx, calendar=after, enforced=None, now=now)
        added = {
            day: text
            for day, text in imported_days.holidays.items()
            if holidays_before.get(day) != text
        }
        return CalendarImport(
            added=added, skipped=imported_days.skipped, version=done.version, index=done.index
        )

    return await store.write(write, is_long=True)
