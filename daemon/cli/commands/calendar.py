"""`calendar`: the days and hours on which jobs may begin."""

import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from daemon.cli.core.formatting import format_time
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import CalendarWritten
from storage.errors import Invalid
from storage.records.calendar import (
    Calendar,
    CalendarDays,
    CalendarImport,
    CalendarListing,
    CalendarVersion,
)

_CHECK = click.option(
    "--check-index",
    type=Integer(0),
    metavar="N",
    help="Fail unless the last change was at index N; 0: fail unless it is new.",
)
_DAYS = 14


@click.command()
@click.argument("name")
@click.argument("file", metavar="FILE")
@_CHECK
@with_output
@with_client
def apply(
    client: ApiClient, screen: Screen, name: str, file: str, *, check_index: int | None
) -> None:
    """Store the calendar NAME from the JSON in FILE (-: standard input).

    Example: steward calendar apply business business.json
    """
    answer = client.call(
        "PUT", f"/v1/calendar/{segment(name)}", _content(file), **_cas(check_index)
    )
    if screen.wants_document:
        screen.document(answer.checked(CalendarWritten))
        return
    screen.line(f'calendar "{name}" is at version {answer.decode(CalendarWritten).version}')


@click.command(name="import")
@click.argument("name")
@click.argument("file", metavar="FILE")
@click.option(
    "--first-year",
    type=Integer(1970, 2199),
    metavar="YEAR",
    help="First year [default: the current year].",
)
@click.option(
    "--last-year",
    type=Integer(1970, 2199),
    metavar="YEAR",
    help="Last year [default: four after the first].",
)
@with_output
@with_client
def import_file(
    client: ApiClient,
    screen: Screen,
    name: str,
    file: str,
    *,
    first_year: int | None,
    last_year: int | None,
) -> None:
    """Add the whole-day events of an iCalendar FILE as holidays of the calendar NAME.

    The calendar is created if it does not exist. If the calendar already has a holiday on one of
    these days, the name in the file replaces the name of the holiday.

    Example: steward calendar import business holidays.ics
    """
    answer = client.call(
        "POST",
        f"/v1/calendar/{segment(name)}/import",
        _content(file),
        **({} if first_year is None else {"first_year": first_year}),
        **({} if last_year is None else {"last_year": last_year}),
    )
    if screen.wants_document:
        screen.document(answer.checked(CalendarImport))
        return
    imported = answer.decode(CalendarImport)
    screen.table(["Day", "Holiday"], [[day, text] for day, text in imported.added.items()])
    for reason in imported.skipped:
        screen.line(f"left out: {reason}")
    screen.line(
        f'calendar "{name}" is at version {imported.version}; {len(imported.added)} days were added'
    )


def _cas(index: int | None) -> dict[str, int]:
    return {} if index is None else {"cas": index}


def _content(file: str) -> bytes:
    """Return the content of a file, or of standard input."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from error


@click.command(name="list")
@with_output
@with_client
def index(client: ApiClient, screen: Screen) -> None:
    """List the calendars.

    Example: steward calendar list
    """
    answer = client.read("/v1/calendars")
    if screen.wants_document:
        screen.document(answer.checked(list[CalendarListing]))
        return
    calendars = answer.decode(list[CalendarListing])
    screen.table(
        ["Name", "Namespace", "Time Zone", "Version", "Description"],
        [
            [
                calendar.name,
                calendar.namespace,
                calendar.time_zone,
                str(calendar.version),
                calendar.description,
            ]
            for calendar in calendars
        ],
    )


@click.command()
@click.argument("name")
@click.option("--from", "first", metavar="DATE", help="First day [default: today].")
@click.option("--days", type=Integer(1, 400), default=_DAYS, help="Number of days.")
@with_output
@with_client
def status(client: ApiClient, screen: Screen, name: str, *, first: str | None, days: int) -> None:
    """Show whether the calendar NAME is open now, and when it is open on the next days.

    Example: steward calendar status business
    """
    query = {} if first is None and days == _DAYS else _days_of(client, name, first, days)
    answer = client.read(f"/v1/calendar/{segment(name)}/days", **query)
    if screen.wants_document:
        screen.document(answer.checked(CalendarDays))
        return
    calendar_days = answer.decode(CalendarDays)
    screen.facts(
        [
            ("Name", calendar_days.name),
            ("Version", str(calendar_days.version)),
            ("Now", "open" if calendar_days.is_open else f"closed ({calendar_days.reason})"),
            *(
                []
                if calendar_days.is_open
                else [("Next Opening", calendar_days.next_opening or _none(calendar_days))]
            ),
        ]
    )
    screen.table(
        ["Day", "Open"],
        [
            [
                day.date,
                ", ".join(" to ".join(span) for span in day.spans)
                if day.is_open
                else f"closed ({day.reason})",
            ]
            for day in calendar_days.days
        ],
    )


def _none(calendar_days: CalendarDays) -> str:
    return f"none up to {calendar_days.searched_until}" if calendar_days.searched_until else "none"


def _days_of(client: ApiClient, name: str, first: str | None, days: int) -> dict[str, str]:
    """Return the query for `days` days from the date `first`. Raises `Invalid`."""
    if first is None:
        calendar_days = client.read(f"/v1/calendar/{segment(name)}/days").decode(CalendarDays)
        first = calendar_days.days[0].date
    try:
        last = date.fromisoformat(first) + timedelta(days=days - 1)
    except (ValueError, OverflowError) as error:
        raise Invalid(f"--from {first!r} must be a date such as 2026-12-25") from error
    return {"from": first, "to": last.isoformat()}


@click.command()
@click.argument("name")
@with_output
@with_client
def inspect(client: ApiClient, screen: Screen, name: str) -> None:
    """Print the calendar NAME as JSON.

    Example: steward calendar inspect business
    """
    screen.document(client.read(f"/v1/calendar/{segment(name)}").object_body("Name"))


@click.command()
@click.argument("name")
@with_output
@with_client
def history(client: ApiClient, screen: Screen, name: str) -> None:
    """List the versions of the calendar NAME and their authors.

    Example: steward calendar history business
    """
    answer = client.read(f"/v1/calendar/{segment(name)}/versions")
    if screen.wants_document:
        screen.document(answer.checked(list[CalendarVersion]))
        return
    versions = answer.decode(list[CalendarVersion])
    screen.table(
        ["Version", "Stored", "By", "Holidays", "Blackouts"],
        [
            [
                str(calendar_version.version),
                format_time(calendar_version.time),
                calendar_version.person,
                str(len(calendar_version.calendar.holidays or ())),
                str(len(calendar_version.calendar.blackouts or ())),
            ]
            for calendar_version in versions
        ],
    )


@click.command()
@click.argument("name")
@_CHECK
@with_output
@with_client
def delete(client: ApiClient, screen: Screen, name: str, *, check_index: int | None) -> None:
    """Delete the calendar NAME, which must not be in use.

    Example: steward calendar delete business
    """
    client.act("DELETE", f"/v1/calendar/{segment(name)}", None, **_cas(check_index))
    screen.report(f'calendar "{name}" was deleted')


@click.command()
@click.argument("name")
@with_output
def init(screen: Screen, name: str) -> None:
    """Print an example of the calendar NAME: open from Monday to Friday, closed at Christmas.

    Example: steward calendar init business
    """
    sample = Calendar(
        name=name,
        weekdays=["mon", "tue", "wed", "thu", "fri"],
        holidays={"2026-12-25": "Christmas Day"},
    )
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(sample))
    filled = {key: value for key, value in written.items() if value}
    screen.document(msgspec.json.encode(filled))
