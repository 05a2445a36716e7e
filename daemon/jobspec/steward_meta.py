"""Steward's extensions of jobs: meta keys that begin with `steward_`.

Nomad's tools parse job files and reject unknown blocks, but meta accepts any key. Steward validates
these keys like fields, so that a typing error is reported. Each key has a row in `EXTENSIONS` and
in docs/extensions.md, and belongs to one level. Code that uses a key gets its value from its row.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from daemon.jobspec.durations import read_duration
from daemon.text.go_format import duration, quote
from storage.errors import Invalid
from storage.records import flow, notification
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.flow import Beyond, TriggerJoin, TriggerWhen
from storage.records.job import Job, JobType
from storage.records.notification import NotifyEvent
from storage.records.periodic import OF_GROUP, OF_JOB

PREFIX = "steward_"

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Meta = Mapping[str, str] | None


class MetaExtension(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A meta key: its levels (job, task group, task; joined by `or`) and its parser.

    `read` raises `Invalid` with the required format.
    """

    name: str
    place: str
    read: Callable[[str], T]
    default: T

    def of(self, meta: Meta) -> T:
        """Return the value in meta; the default if it is missing or invalid."""
        try:
            return self.read((meta or {})[self.name])
        except (KeyError, Invalid):  # registration rejects invalid values
            return self.default


def flag(text: str) -> bool:
    """Parse `true` or `false`."""
    if text not in ("true", "false"):
        raise Invalid("must be true or false")
    return text == "true"


def one_of(kind: type[E]) -> Callable[[str], E]:
    """Return a parser for the name of a member."""

    def read(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            raise Invalid(f"must be {' or '.join(kind)}") from None

    return read


def number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for an integer in a range."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
            raise Invalid(f"must be a whole number from {least} to {most}")
        if not least <= int(text) <= most:
            raise Invalid(f"must be from {least} to {most}")
        return int(text)

    return read


def span(most: int) -> Callable[[str], int]:
    """Return a parser for a duration up to a maximum, in nanoseconds."""

    def read(text: str) -> int:
        try:
            value = read_duration(text)
        except ValueError as error:
            raise Invalid(f"{error}: must be a duration like 30s or 1h") from None
        if not 0 <= value <= most:
            raise Invalid(f"must be from 0s to {duration(most)}")
        return value

    return read


def least_span(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for a duration with a minimum and a maximum, in nanoseconds."""

    def read(text: str) -> int:
        value = span(most)(text)
        if value < least:
            raise Invalid(f"must be from {duration(least)} to {duration(most)}")
        return value

    return read


MAX_NEEDS_LENGTH = 64 * 1024  # bytes
MAX_CONDITION_LENGTH = 4096
MAX_QUESTION_LENGTH = 1000


class When(StrEnum):
    """The outcomes of its needs with which a step begins."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


class OnFailure(StrEnum):
    """The treatment of the other elements after more have failed than are allowed to."""

    GO_ON = "go-on"  # they get a slot
    STOP = "stop"  # none begins any more


MAX_ELEMENTS = 10_000  # of a step
_MAX_LIST_LENGTH = 64 * 1024  # bytes
_LIST = msgspec.json.Decoder(list[object] | dict[str, object])
_MATRIX = msgspec.json.Decoder(dict[str, list[object]])
_MATRIX_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_LEVELS = 64  # of lists and objects, far below the depth at which Python fails


def read_nested(decoder: msgspec.json.Decoder[T], text: str) -> T:
    """Decode JSON with a limited number of levels.

    Raises `msgspec.DecodeError`, or `Invalid` beyond the limit.
    """
    try:
        found = decoder.decode(text)
    except RecursionError:
        level: list[object] = [()]
    else:
        level = [found]
        for _ in range(_MAX_LEVELS):
            level = [inner for item in level for inner in _inner(item)]
    if level:
        raise Invalid(f"has more than {_MAX_LEVELS} levels of lists and objects")
    return found


def _inner(value: object) -> Iterable[object]:
    """Return the values in a list or an object that are lists and objects themselves."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inner if isinstance(item, dict | list)]


def _is_output(text: str) -> bool:
    return text.strip().startswith("${output.") and text.strip().endswith("}")


def for_each(text: str) -> str:
    """Check the list of a step: a JSON list or object, or a reference to an output."""
    if len(text) > _MAX_LIST_LENGTH:
        raise Invalid(f"must be at most {_MAX_LIST_LENGTH} bytes long")
    if _is_output(text):
        return text
    try:
        found = read_nested(_LIST, text)
    except msgspec.DecodeError:
        raise Invalid(
            "must be a JSON list or object, or one reference such as ${output.plan.shards}"
        ) from None
    if len(found) > MAX_ELEMENTS:
        raise Invalid(f"has {len(found)} items; the maximum is {MAX_ELEMENTS}")
    return text


def matrix(text: str) -> dict[str, list[object]]:
    """Parse a JSON object of lists."""
    if len(text) > _MAX_LIST_LENGTH:
        raise Invalid(f"must be at most {_MAX_LIST_LENGTH} bytes long")
    try:
        found = read_nested(_MATRIX, text)
    except msgspec.DecodeError:
        raise Invalid('must be a JSON object of lists, such as {"os": ["a", "b"]}') from None
    for name in found:
        if not _MATRIX_NAME.fullmatch(name):
            raise Invalid(f"names {quote(name[:_SHOWN])}; a name has letters, digits and _")
    number_of_all = math.prod(map(len, found.values()))
    if number_of_all > MAX_ELEMENTS:
        raise Invalid(f"has {number_of_all} combinations; the maximum is {MAX_ELEMENTS}")
    if not found or not number_of_all:
        raise Invalid("must have at least one list, and no empty one")
    return found


class GateElse(StrEnum):
    """The decision about a step whose gate is not passed in time."""

    REJECT = "reject"
    APPROVE = "approve"


class Allowance(msgspec.Struct, frozen=True):
    """The number of elements of a step that may fail, or their share in percent."""

    number: int = 0
    is_percent: bool = False

    def of(self, total: int) -> int:
        """Return the number for a step with this many elements."""
        return total * self.number // 100 if self.is_percent else self.number


def allowance(text: str) -> Allowance:
    """Parse a number of elements, or a percentage such as `10%`."""
    is_percent = text.endswith("%")
    try:
        return Allowance(
            number(0, 100 if is_percent else 10_000)(text.removesuffix("%")), is_percent
        )
    except Invalid:
        raise Invalid("must be a number from 0 to 10000, or from 0% to 100%") from None


def names(text: str) -> tuple[str, ...]:
    """Parse a list of different names, separated by commas."""
    if len(text) > MAX_NEEDS_LENGTH:
        raise Invalid(f"must be at most {MAX_NEEDS_LENGTH} bytes long")
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise Invalid("must be names separated by commas")
    seen = set[str]()
    for item in found:
        if item in seen:
            raise Invalid(f"names {quote(item)} twice")
        seen.add(item)
    return found


def condition(text: str) -> str:
    """Return the text of a condition; `daemon/flow` parses it, with the names of the needs."""
    if not text.strip():
        raise Invalid("must be a filter expression")
    if len(text) > MAX_CONDITION_LENGTH:
        raise Invalid(f"must be at most {MAX_CONDITION_LENGTH} characters long")
    return text


def question(text: str) -> str:
    """Return the question of a gate."""
    if not text.strip() or len(text) > MAX_QUESTION_LENGTH:
        raise Invalid(f"must be a question of at most {MAX_QUESTION_LENGTH} characters")
    return text


def approvers(text: str) -> tuple[str, ...]:
    """Parse a list of roles and policies, such as `role:release, policy:ops`."""
    found = names(text)
    if len(found) > _MOST_APPROVERS:
        raise Invalid(f"must be at most {_MOST_APPROVERS} roles and policies")
    for line in found:
        kind, colon, name = line.partition(":")
        if kind not in ("role", "policy") or not colon or not name:
            raise Invalid(f"has {quote(line[:_SHOWN])}; write role:NAME or policy:NAME")
    return found


_MOST_APPROVERS = 50
_SHOWN = 80  # characters of a wrong text
_HIGHEST_EXIT_CODE = 255
_MOST_RANGES = 100

ExitCodes = tuple[tuple[int, int], ...]


class BeginTime(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the time at which a step begins; exactly one of the fields is set.

    `minute` is a time of day, in minutes after midnight. `moment` is in nanoseconds since the epoch,
    and `delay` in nanoseconds after the needs were met.
    """

    minute: int | None = None
    moment: int | None = None
    delay: int | None = None


_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_LONGEST_DELAY = 8760 * HOUR


def begin_time(text: str) -> BeginTime:
    """Parse a time of day, a moment, or a delay, such as `22:00` or `+15m`."""
    if found := _TIME_OF_DAY.fullmatch(text):
        return BeginTime(minute=int(found[1]) * 60 + int(found[2]))
    if text.startswith("+"):
        return BeginTime(delay=span(_LONGEST_DELAY)(text[1:]))
    return BeginTime(moment=moment(text))


def moment(text: str) -> int:
    """Parse a moment such as `2026-12-24T18:00:00Z` to nanoseconds since the epoch."""
    try:
        found = datetime.fromisoformat(text) if len(text) <= _LONGEST_MOMENT else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found.year not in range(1970, 2200):
        raise Invalid(
            "must be a time of day such as 22:00, a moment such as 2026-12-24T18:00:00Z, "
            "or a delay such as +15m"
        )
    return int(found.timestamp()) * SECOND


_LONGEST_MOMENT = 40  # characters


def zone_name(text: str) -> str:
    """Check the name of a time zone."""
    from daemon.jobspec.cron import zone  # imported late: few jobs name one

    try:
        zone(text)
    except Invalid:
        raise Invalid("must be a name of the zone database, such as Europe/Berlin") from None
    return text


def exit_codes(text: str) -> ExitCodes:
    """Parse a list of exit codes and ranges, such as `75, 100-110`."""
    found = []
    for name in names(text):
        first, dash, last = name.partition("-")
        try:
            code = number(1, _HIGHEST_EXIT_CODE)
            found.append((code(first), code(last if dash else first)))
        except Invalid:
            raise Invalid(
                f"has {quote(name[:_SHOWN])}; write exit codes from 1 to 255 and ranges, "
                "such as 75, 100-110"
            ) from None
        if found[-1][0] > found[-1][1]:
            raise Invalid(f"has the range {quote(name)}, whose first code is higher than its last")
    if len(found) > _MOST_RANGES:
        raise Invalid(f"must be at most {_MOST_RANGES} codes and ranges")
    return tuple(found)


MAX_OUTPUTS = 128  # names of a task group
OUTPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_OUTPUT_NAME = 128  # characters


def is_output_name(text: str) -> bool:
    """Return whether a text can name an output of a step."""
    return len(text) <= _LONGEST_OUTPUT_NAME and OUTPUT_NAME.fullmatch(text) is not None


def outputs(text: str) -> tuple[str, ...]:
    """Parse the list of outputs that a step must write."""
    found = names(text)
    if len(found) > MAX_OUTPUTS:
        raise Invalid(f"must be at most {MAX_OUTPUTS} names")
    for name in found:
        if not is_output_name(name):
            raise Invalid(
                f"names {quote(name[:_LONGEST_OUTPUT_NAME])}; a name has letters, digits and _, "
                "and does not begin with a digit"
            )
    return found


MAX_PATTERNS = 32  # of one task
_LONGEST_PATTERN = 1024  # characters
_NEVER_KEPT = frozenset({"secrets", "private"})  # directories of a task


def patterns(text: str) -> tuple[str, ...]:
    """Parse the patterns of the files to keep: relative paths, separated by commas."""
    found = names(text)
    if len(found) > MAX_PATTERNS:
        raise Invalid(f"must be at most {MAX_PATTERNS} patterns")
    for name in found:
        parts = name.split("/")
        if len(name) > _LONGEST_PATTERN or "\0" in name:
            raise Invalid(f"has the pattern {quote(name[:_SHOWN])}, which is not a path")
        if any(part in ("", ".", "..") for part in parts):
            raise Invalid(
                f"has the pattern {quote(name[:_SHOWN])}; write a path below the task directory, such "
                "as out/*.csv, or below alloc/"
            )
        if parts[0] in _NEVER_KEPT:
            raise Invalid(f"has the pattern {quote(name[:_SHOWN])}; secrets are not kept")
        if parts[0] == "alloc" and len(parts) == 1:
            raise Invalid(
                f"has the pattern {quote(name)}; name files below it, such as alloc/data/*"
            )
        if parts[-1] == "**":
            raise Invalid(
                f"has the pattern {quote(name[:_SHOWN])}; write {quote(name[:_SHOWN] + '/*')}"
            )
    return found


_MAX_AFTER_META = 64 * 1024  # bytes
_MOST_PASSED = 128  # names
_TEXTS = msgspec.json.Decoder(dict[str, str])
PASSED = re.compile(
    r"\$\{(?:meta\.(?P<meta>[A-Za-z0-9_.-]+)|run\.(?P<run>job|namespace|number|status)"
    r"|output\.(?P<step>[A-Za-z0-9_-]+)(?:\[(?P<element>[0-9]{1,5})\])?"
    r"\.(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}"
)


def after_meta(text: str) -> dict[str, str]:
    """Parse the meta that an ended run passes on: a JSON object of texts with references."""
    if len(text) > _MAX_AFTER_META:
        raise Invalid(f"must be at most {_MAX_AFTER_META} bytes long")
    try:
        found = _TEXTS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Invalid('must be a JSON object of texts, such as {"day": "${meta.day}"}') from None
    if len(found) > _MOST_PASSED:
        raise Invalid(f"has {len(found)} names; the maximum is {_MOST_PASSED}")
    for name, value in found.items():
        rest = PASSED.sub("", value)
        if "${" in rest:
            wrong = rest[rest.index("${") :][:_SHOWN]
            raise Invalid(
                f"has {quote(wrong)} in {quote(name[:_SHOWN])}; write ${{meta.NAME}}, "
                "${output.STEP.NAME}, ${run.job}, ${run.namespace}, ${run.number} or ${run.status}"
            )
    return found


def meta_name(text: str) -> str:
    """Return the name of a meta key."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", text):
        raise Invalid("must be the name of a meta key")
    return text


class ClosedPolicy(StrEnum):
    """The treatment of a slot at which the calendar of a job is closed."""

    SKIP = "skip"
    NEXT = "next"  # all slots until the next opening are one launch at the opening


_MOST_MONTH_DAYS = 31


def calendar_name(text: str) -> str:
    """Check the name of a calendar."""
    if not _CALENDAR_NAME.fullmatch(text):
        raise Invalid("must be the name of a calendar: 1 to 128 letters, digits, - and _")
    return text


_CALENDAR_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def month_days(text: str) -> tuple[int, ...]:
    """Parse numbers of days of a month, such as `1, -1`; negative ones count from the end."""
    found = []
    for name in names(text):
        digits = name.removeprefix("-")
        try:
            found.append(number(1, _MOST_MONTH_DAYS)(digits) * (-1 if name[0] == "-" else 1))
        except Invalid:
            raise Invalid(
                f"has {quote(name[:_SHOWN])}; write days of the month from 1 to 31, or from -1 to -31, "
                "which count from its end"
            ) from None
    return tuple(found)


_QUEUE = re.compile(r"(?:[A-Za-z0-9_.-]|\$\{NOMAD_META_[A-Za-z0-9_.-]+\})+")
_LONGEST_QUEUE = 128  # characters
_QUEUE_LETTERS = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def queue(text: str) -> str:
    """Check the name of a queue, which may contain meta of the job."""
    if len(text) > _LONGEST_QUEUE or not _QUEUE.fullmatch(text):
        raise Invalid(
            f"must be a name of at most {_LONGEST_QUEUE} letters, digits, -, _ and ., "
            "possibly with ${NOMAD_META_NAME}"
        )
    return text


def queue_name(text: str) -> str:
    """Return the name of a queue without references. Raises `Invalid`."""
    if not _QUEUE_LETTERS.fullmatch(text):
        raise Invalid(f"must have 1 to {_LONGEST_QUEUE} letters, digits, -, _ and .")
    return text


_MOST_STEP_QUEUES = 8


def step_queues(text: str) -> tuple[str, ...]:
    """Parse the queues of a step: different names, separated by commas."""
    found = names(text)
    if len(found) > _MOST_STEP_QUEUES:
        raise Invalid(f"must be at most {_MOST_STEP_QUEUES} queues")
    for name in found:
        if not _QUEUE_LETTERS.fullmatch(name):
            raise Invalid(
                f"has {quote(name[:_SHOWN])}; a queue has a name of 1 to {_LONGEST_QUEUE} letters, "
                "digits, -, _ and ."
            )
    return found


class CatchUpPolicy(StrEnum):
    """Launches for the slots that passed while the daemon was not running."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class OverflowPolicy(StrEnum):
    """Handling of a dispatch when the maximum number of children is active."""

    QUEUE = "queue"
    DROP = "drop"
    REPLACE = "replace"


FREQUENT_LAUNCHES = MetaExtension(
    name="steward_frequent_launches", place="job", read=flag, default=False
)
CATCH_UP = MetaExtension(
    name="steward_catch_up", place="job", read=one_of(CatchUpPolicy), default=CatchUpPolicy.LAST
)
CATCH_UP_MOST = MetaExtension(
    name="steward_catch_up_most", place="job", read=number(1, 1000), default=10
)
JITTER = MetaExtension(name="steward_jitter", place="job", read=span(24 * HOUR), default=0)
RUN_CALENDAR = MetaExtension(name=OF_JOB, place="job", read=calendar_name, default="")
RUN_CALENDAR_ELSE = MetaExtension(
    name="steward_run_calendar_else",
    place="job",
    read=one_of(ClosedPolicy),
    default=ClosedPolicy.SKIP,
)
RUN_DAY = MetaExtension[tuple[int, ...]](
    name="steward_run_day", place="job", read=month_days, default=()
)

CHILDREN_AT_ONCE = MetaExtension[int | None](
    name="steward_children_at_once", place="job", read=number(1, 10_000), default=None
)
CHILDREN_BEYOND = MetaExtension(
    name="steward_children_beyond",
    place="job",
    read=one_of(OverflowPolicy),
    default=OverflowPolicy.QUEUE,
)
CHILDREN_KEPT = MetaExtension[int | None](
    name="steward_children_kept", place="job", read=number(0, 1_000_000), default=None
)
CHILDREN_KEPT_FOR = MetaExtension[int | None](
    name="steward_children_kept_for", place="job", read=span(87_600 * HOUR), default=None
)
NOTIFY = MetaExtension[tuple[NotifyEvent, ...]](
    name=notification.EVENTS, place="job", read=notification.read_events, default=()
)
NOTIFY_WEBHOOK = MetaExtension(
    name=notification.WEBHOOK, place="job", read=notification.read_webhook, default=""
)
NOTIFY_COMMAND = MetaExtension(
    name=notification.COMMAND, place="job", read=notification.read_command, default=""
)
NOTIFY_TO = MetaExtension[tuple[str, ...]](
    name=notification.RECEIVERS, place="job", read=notification.read_receivers, default=()
)

NEEDS = MetaExtension[tuple[str, ...]](
    name="steward_needs", place="task group", read=names, default=()
)
WHEN = MetaExtension(
    name="steward_when", place="task group", read=one_of(When), default=When.SUCCESS
)
IF = MetaExtension(name="steward_if", place="task group", read=condition, default="")

PARALLEL = MetaExtension[int | None](
    name="steward_parallel", place="task group", read=number(1, 10_000), default=None
)
FAILURES_ALLOWED = MetaExtension(
    name="steward_failures_allowed", place="task group", read=allowance, default=Allowance()
)
ON_FAILURE = MetaExtension(
    name="steward_on_failure",
    place="task group",
    read=one_of(OnFailure),
    default=OnFailure.GO_ON,
)
GATE = MetaExtension(name="steward_gate", place="task group", read=question, default="")
GATE_NUMBER = MetaExtension(
    name="steward_gate_number", place="task group", read=number(1, 20), default=1
)
GATE_BY = MetaExtension[tuple[str, ...]](
    name="steward_gate_by", place="task group", read=approvers, default=()
)
GATE_NOT_SELF = MetaExtension(
    name="steward_gate_not_self", place="task group", read=flag, default=False
)
GATE_WITHIN = MetaExtension[int | None](
    name="steward_gate_within", place="task group", read=span(8760 * HOUR), default=None
)
GATE_ELSE = MetaExtension(
    name="steward_gate_else", place="task group", read=one_of(GateElse), default=GateElse.REJECT
)
NOT_BEFORE = MetaExtension[BeginTime | None](
    name="steward_not_before", place="task group", read=begin_time, default=None
)
NOT_AFTER = MetaExtension[BeginTime | None](
    name="steward_not_after", place="task group", read=begin_time, default=None
)
TIME_ZONE = MetaExtension(
    name="steward_time_zone", place="task group", read=zone_name, default="UTC"
)
RETRY_EXIT_CODES = MetaExtension[ExitCodes](
    name="steward_retry_exit_codes", place="task group", read=exit_codes, default=()
)
FOR_EACH = MetaExtension(name="steward_for_each", place="task group", read=for_each, default="")
MATRIX = MetaExtension[dict[str, list[object]]](
    name="steward_matrix", place="task group", read=matrix, default={}
)
REDO = MetaExtension(name="steward_redo", place="task group", read=flag, default=False)
OUTPUTS = MetaExtension[tuple[str, ...]](
    name="steward_outputs", place="task group", read=outputs, default=()
)
KEEP = MetaExtension[tuple[str, ...]](
    name="steward_keep", place="task group or task", read=patterns, default=()
)
RUNS_KEPT = MetaExtension(
    name="steward_runs_kept", place="job", read=number(1, 1_000_000), default=100
)

CALENDAR = MetaExtension(name=OF_GROUP, place="task group", read=calendar_name, default="")
STEP_QUEUES = MetaExtension[tuple[str, ...]](
    name=flow.STEP_QUEUES, place="task group", read=step_queues, default=()
)
STEP_SLOTS = MetaExtension(
    name="steward_concurrency_slots", place="task group", read=number(1, 10_000), default=1
)
RUN_TIMEOUT = MetaExtension[int | None](
    name="steward_run_timeout", place="job", read=least_span(SECOND, 8760 * HOUR), default=None
)
RUN_CLEANUP = MetaExtension(
    name="steward_run_cleanup", place="job", read=span(8760 * HOUR), default=10 * MINUTE
)
RUN_QUEUE = MetaExtension(name=flow.RUN_QUEUE, place="job", read=queue, default="")
RUN_SLOTS = MetaExtension(
    name="steward_run_concurrency_slots", place="job", read=number(1, 10_000), default=1
)
RUN_BEYOND = MetaExtension(
    name="steward_run_concurrency_beyond", place="job", read=one_of(Beyond), default=Beyond.QUEUE
)

AFTER = MetaExtension[tuple[str, ...]](
    name=flow.AFTER, place="job", read=flow.read_sources, default=()
)
AFTER_WHEN = MetaExtension(
    name=flow.AFTER_WHEN, place="job", read=one_of(TriggerWhen), default=TriggerWhen.SUCCESS
)
AFTER_JOIN = MetaExtension(
    name="steward_after_join", place="job", read=one_of(TriggerJoin), default=TriggerJoin.EACH
)
AFTER_KEY = MetaExtension(name="steward_after_key", place="job", read=meta_name, default="")
AFTER_WITHIN = MetaExtension(
    name="steward_after_within", place="job", read=span(8760 * HOUR), default=168 * HOUR
)
AFTER_META = MetaExtension[dict[str, str]](
    name="steward_after_meta", place="job", read=after_meta, default={}
)

EXTENSIONS: tuple[MetaExtension[Any], ...] = (
    RUN_QUEUE,
    RUN_SLOTS,
    RUN_BEYOND,
    AFTER,
    AFTER_WHEN,
    AFTER_JOIN,
    AFTER_KEY,
    AFTER_WITHIN,
    AFTER_META,
    FREQUENT_LAUNCHES,
    CATCH_UP,
    CATCH_UP_MOST,
    JITTER,
    RUN_CALENDAR,
    RUN_CALENDAR_ELSE,
    RUN_DAY,
    CHILDREN_AT_ONCE,
    CHILDREN_BEYOND,
    CHILDREN_KEPT,
    CHILDREN_KEPT_FOR,
    NOTIFY,
    NOTIFY_WEBHOOK,
    NOTIFY_COMMAND,
    NOTIFY_TO,
    NEEDS,
    WHEN,
    IF,
    PARALLEL,
    FAILURES_ALLOWED,
    ON_FAILURE,
    GATE,
    GATE_NUMBER,
    GATE_BY,
    GATE_NOT_SELF,
    GATE_WITHIN,
    GATE_ELSE,
    NOT_BEFORE,
    NOT_AFTER,
    TIME_ZONE,
    RETRY_EXIT_CODES,
    FOR_EACH,
    MATRIX,
    REDO,
    OUTPUTS,
    KEEP,
    CALENDAR,
    STEP_QUEUES,
    STEP_SLOTS,
    RUNS_KEPT,
    RUN_TIMEOUT,
    RUN_CLEANUP,
)


def list_length(meta: Meta) -> int | None:
    """Return the number of elements by the list in the meta of a group; None without a list.

    0 if the list is an output, or is not valid.
    """
    if FOR_EACH.name not in (meta or ()) and MATRIX.name not in (meta or ()):
        return None
    if matrix := MATRIX.of(meta):
        return math.prod(map(len, matrix.values()))
    text = FOR_EACH.of(meta)
    return len(read_nested(_LIST, text)) if text and not _is_output(text) else 0


def problems(job: Job) -> Iterator[str]:
    """Yield the errors of a job's Steward keys."""
    yield from _in("job", "", job.meta)
    yield from _without_channels(job.meta or {})
    yield from _from_dispatches(job)
    yield from _after(job)
    yield from _without_schedule(job)
    yield from _queue(job)
    for group in job.task_groups or ():
        yield from _in("task group", group.name, group.meta)
        for task in group.tasks or ():
            yield from _in("task", task.name, task.meta)


def _without_channels(meta: Mapping[str, str]) -> Iterator[str]:
    ways = (NOTIFY_TO.name, NOTIFY_WEBHOOK.name, NOTIFY_COMMAND.name)
    if NOTIFY.name in meta and not any(way in meta for way in ways):
        yield f"Meta of job: {quote(NOTIFY.name)} has no receiver; add {' or '.join(map(quote, ways))}"


def _queue(job: Job) -> Iterator[str]:
    """Yield the errors of the keys of queues, beyond the form of each value."""
    meta = job.meta or {}
    for item in (RUN_SLOTS, RUN_BEYOND):
        if item.name in meta and RUN_QUEUE.name not in meta:
            yield f"{item.name} needs {RUN_QUEUE.name}"
    if RUN_QUEUE.name in meta and job.type != JobType.BATCH:
        yield f"{RUN_QUEUE.name} needs a job of type batch"
    # A dispatch may give the meta that is missing here.
    if job.launches_children or not (text := RUN_QUEUE.of(meta)):
        return
    if not _QUEUE_LETTERS.fullmatch(queue_of(job)):
        yield (
            f"{RUN_QUEUE.name} is {quote(text)}, which makes {quote(queue_of(job)[:_SHOWN])}; "
            + (f"a queue has a name of 1 to {_LONGEST_QUEUE} letters, digits, -, _ and .")
        )


def queue_of(job: Job) -> str:
    """Return the name of the queue of a job's runs, with the meta of the job; empty without one."""
    return flow.resolved_queue(RUN_QUEUE.of(job.meta), job.meta)


def _after(job: Job) -> Iterator[str]:
    """Yield the errors of the keys of triggers, beyond the form of each value."""
    meta, block = job.meta or {}, job.parameterized_job
    keys = (AFTER, AFTER_WHEN, AFTER_JOIN, AFTER_KEY, AFTER_WITHIN, AFTER_META)
    present = [key.name for key in keys if key.name in meta]
    if not present or job.dispatched:
        return
    if AFTER.name not in meta:
        yield f"{present[0]} needs {AFTER.name}"
    if block is None or job.type != JobType.BATCH:
        yield f"{AFTER.name} needs a parameterized job of type batch"
        return
    if AFTER_JOIN.of(meta) != TriggerJoin.ALL:
        for item in (AFTER_KEY, AFTER_WITHIN):
            if item.name in meta:
                yield f'{item.name} needs {AFTER_JOIN.name} = "{TriggerJoin.ALL}"'
    passed, required = AFTER_META.of(meta), block.meta_required or ()
    if unknown := sorted(passed.keys() - {*required, *(block.meta_optional or ())}):
        yield (
            f"{AFTER_META.name} names {quote(unknown[0][:_SHOWN])}, "
            "which is in neither meta_required nor meta_optional"
        )
    if missing := sorted({*required} - passed.keys()):
        yield f"{AFTER_META.name} lacks {quote(missing[0])}, which meta_required names"
    if block.payload == "required":
        yield f"{AFTER.name} passes no payload, but the job requires one"


def _from_dispatches(job: Job) -> Iterator[str]:
    """Yield the keys of Steward that a dispatch would set, where they have no effect."""
    block = job.parameterized_job
    for name in (*(block.meta_required or ()), *(block.meta_optional or ())) if block else ():
        if name.startswith(PREFIX):
            yield f"Parameterized job: a dispatch cannot set {quote(name)}; write it in the job"


def _without_schedule(job: Job) -> Iterator[str]:
    """Yield the keys about the slots of a schedule in a job without a schedule."""
    if job.periodic is not None:
        return
    for key in (RUN_CALENDAR.name, RUN_CALENDAR_ELSE.name, RUN_DAY.name):
        if key in (job.meta or {}) and not job.parent_id:
            yield f"Meta of job: {quote(key)} needs a job with a periodic block"


def _in(place: str, name: str, meta: Meta) -> Iterator[str]:
    where = f"{place} {quote(name)}" if name else place
    known = {extension.name: extension for extension in EXTENSIONS}
    for key, text in (meta or {}).items():
        if not key.startswith(PREFIX):
            continue
        extension = known.get(key)
        if extension is None:
            yield f"Meta of {where}: unknown key {quote(key)}{_nearest(key, known)}"
        elif place not in extension.place.split(" or "):
            yield f"Meta of {where}: {quote(key)} belongs in the meta of a {extension.place}"
        else:
            try:
                extension.read(text)
            except Invalid as error:
                yield f"Meta of {where}: {quote(key)} is {quote(text)}, {error}"


def _nearest(key: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0)
    return f"; did you mean {quote(close[0])}?" if close else ""
