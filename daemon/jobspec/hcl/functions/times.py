"""Functions on timestamps, which are strings such as `2024-01-31T12:00:00Z`."""

import re
from datetime import UTC, datetime, timedelta, timezone

from daemon.jobspec.durations import read_duration
from daemon.jobspec.hcl.functions.registry import function, text
from daemon.jobspec.hcl.scope import ArgumentFault, FunctionFault, HclFunction
from daemon.jobspec.hcl.values import Value
from storage.records.base import SECOND

_PARTS = (  # parts of a timestamp, each with its name for error messages
    (re.compile(r"(\d{4})-"), "year"),
    (re.compile(r"(\d{2})-"), "month"),
    (re.compile(r"(\d{2})(?=[Tt]|$)"), "day of month"),
)
_CLOCK = re.compile(r"[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_NOT_ONE = "not a valid RFC3339 timestamp"
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Quoted texts, runs of one letter, and all other characters unchanged.
_MAX_FORMAT = 10_000  # characters: a verb takes several microseconds
_TOKEN = re.compile(r"'((?:[^']|'')*)'|(([a-zA-Z])\3*)|([^a-zA-Z']+)|(')")


def read_time(value: str) -> datetime:
    """Parse a timestamp without fractions of a second. Raises `ValueError`."""
    position = 0
    numbers: list[int] = []
    for pattern, part in _PARTS:
        match = pattern.match(value, position)
        if match is None:
            raise ValueError(f'{_NOT_ONE}: cannot use "{value[position:][:50]}" as {part}')
        numbers.append(int(match[1]))
        position = match.end()
    if position == len(value):
        raise ValueError(f"{_NOT_ONE}: missing required time introducer 'T'")
    match = _CLOCK.fullmatch(value, position)
    if match is None:
        raise ValueError(f'{_NOT_ONE}: cannot use "{value[position + 1 :][:50]}" as time of day')
    hour, minute, second, _, offset = match.groups()
    try:
        year, month, day = numbers
        return datetime(year, month, day, int(hour), int(minute), int(second), tzinfo=_zone(offset))
    except ValueError as error:
        raise ValueError(f"{_NOT_ONE}: {error}") from error


def _zone(offset: str) -> timezone:
    if offset in "Zz":
        return UTC
    hours, minutes = int(offset[1:3]), int(offset[4:6])
    span = timedelta(hours=hours, minutes=minutes)
    return timezone(-span if offset[0] == "-" else span)


def _timeadd(value: str, span: str) -> Value:
    try:
        start = read_time(value)
        added = start + timedelta(seconds=read_duration(span) // SECOND)
    except (ValueError, OverflowError) as error:
        raise FunctionFault(str(error)) from error
    return f"{added:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + _offset(added, "Z", ":")


def _offset(moment: datetime, utc: str, separator: str) -> str:
    minutes = int((moment.utcoffset() or timedelta()).total_seconds()) // 60
    if not minutes and utc:
        return utc
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02}{separator}{abs(minutes) % 60:02}"


def _formatdate(form: str, value: str) -> Value:
    if len(form) > _MAX_FORMAT:
        raise ArgumentFault(0, f"the format has more than {_MAX_FORMAT} characters")
    try:
        moment = read_time(value)
    except ValueError as error:
        raise ArgumentFault(1, str(error)) from error
    pieces = []
    for quoted, verb, _, literal, stray in _TOKEN.findall(form):
        if stray:
            raise ArgumentFault(0, "unterminated literal '")
        if verb:
            pieces.append(_verb(verb, moment))
        else:
            pieces.append(literal or quoted.replace("''", "'"))
    return "".join(pieces)


def _verb(verb: str, moment: datetime) -> str:
    values = {
        "YYYY": f"{moment.year:04}",
        "YY": f"{moment.year % 100:02}",
        "MMMM": _MONTHS[moment.month - 1],
        "MMM": _MONTHS[moment.month - 1][:3],
        "MM": f"{moment.month:02}",
        "M": str(moment.month),
        "DD": f"{moment.day:02}",
        "D": str(moment.day),
        "EEEE": _DAYS[moment.weekday()],
        "EEE": _DAYS[moment.weekday()][:3],
        "hh": f"{moment.hour:02}",
        "h": str(moment.hour),
        "HH": f"{(moment.hour + 11) % 12 + 1:02}",
        "H": str((moment.hour + 11) % 12 + 1),
        "AA": "AM" if moment.hour < 12 else "PM",
        "aa": "am" if moment.hour < 12 else "pm",
        "mm": f"{moment.minute:02}",
        "m": str(moment.minute),
        "ss": f"{moment.second:02}",
        "s": str(moment.second),
        "ZZZZZ": _offset(moment, "", ":"),
        "ZZZZ": _offset(moment, "", ""),
        "ZZZ": _offset(moment, "UTC", ""),
        "Z": _offset(moment, "Z", ":"),
    }
    if verb not in values:
        raise ArgumentFault(0, f'invalid date format verb "{verb[:20]}"')
    return values[verb]


FUNCTIONS: dict[str, HclFunction] = {
    "formatdate": function(_formatdate, text("format"), text("time")),
    "timeadd": function(_timeadd, text("timestamp"), text("duration")),
}
