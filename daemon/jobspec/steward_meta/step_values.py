"""Values of the keys of steps, and their parsers."""

import json
import math
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from daemon.jobspec.steward_meta.key import (
    LONGEST_QUEUE,
    QUEUE_LETTERS,
    SHOWN,
    T,
    moment,
    names,
    number,
    span,
)
from daemon.text.go_format import quote
from storage.errors import Invalid, Malformed
from storage.records import json_steps
from storage.records.base import HOUR

MAX_CONDITION_LENGTH = 4096
MAX_QUESTION_LENGTH = 1000


class When(StrEnum):
    """The outcomes of a step's needs after which the step begins."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


class OnFailure(StrEnum):
    """The treatment of remaining elements or steps after too many failures.

    In the meta of a step, it applies to the elements of the step. In the meta of a job, it applies
    to the steps of a run.
    """

    GO_ON = "go-on"  # they may begin
    STOP = "stop"  # none of them begins


MAX_ELEMENTS = 10_000  # elements of one step
_MAX_LIST_LENGTH = 64 * 1024  # bytes
LIST = msgspec.json.Decoder(list[object] | dict[str, object])
_MATRIX = msgspec.json.Decoder(dict[str, list[object]])
_MATRIX_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_LEVELS = 64  # nested lists and objects; Python fails only at a much greater depth


def read_nested(decoder: msgspec.json.Decoder[T], text: str) -> T:
    """Decode JSON with a limited number of levels.

    Raises `msgspec.DecodeError`, or `Invalid` beyond the limit.
    """
    kind: Any = decoder.type  # a `TypeForm` since msgspec 0.23, a `type` before
    try:
        decoded: T = json_steps.decode_as(text.encode(), kind)
    except Malformed as error:
        raise Invalid(f"cannot be read: {error}") from None
    except RecursionError:
        level: list[object] = [()]
    else:
        level = [decoded]
        for _ in range(_MAX_LEVELS):
            level = [inner for nested in level for inner in _inner(nested)]
    if level:
        raise Invalid(f"has more than {_MAX_LEVELS} levels of lists and objects")
    return decoded


def _inner(value: object) -> Iterable[object]:
    """Return the lists and objects directly inside a list or an object."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in inner if isinstance(part, dict | list)]


def is_output(text: str) -> bool:
    """Return whether a string is a reference to an output."""
    return text.strip().startswith("${output.") and text.strip().endswith("}")


def for_each(text: str) -> str:
    """Check and return the list of a step: a JSON list or object, or a reference to an output."""
    if len(text) > _MAX_LIST_LENGTH:
        raise Invalid(f"must be at most {_MAX_LIST_LENGTH} bytes long")
    if is_output(text):
        return text
    try:
        elements = read_nested(LIST, text)
    except msgspec.DecodeError:
        raise Invalid(
            "must be a JSON list or object, or one reference such as ${output.plan.shards}"
        ) from None
    if len(elements) > MAX_ELEMENTS:
        raise Invalid(f"has {len(elements)} items; the maximum is {MAX_ELEMENTS}")
    return text


def matrix(text: str) -> dict[str, list[object]]:
    """Parse a JSON object of lists."""
    if len(text) > _MAX_LIST_LENGTH:
        raise Invalid(f"must be at most {_MAX_LIST_LENGTH} bytes long")
    try:
        lists = read_nested(_MATRIX, text)
    except msgspec.DecodeError:
        raise Invalid('must be a JSON object of lists, such as {"os": ["a", "b"]}') from None
    for name in lists:
        if not _MATRIX_NAME.fullmatch(name):
            raise Invalid(
                f"contains the invalid name {quote(name[:SHOWN])}; a name consists of letters, "
                "digits and _"
            )
    number_of_all = math.prod(map(len, lists.values()))
    if number_of_all > MAX_ELEMENTS:
        raise Invalid(f"has {number_of_all} combinations; the maximum is {MAX_ELEMENTS}")
    if not lists or not number_of_all:
        raise Invalid("must have at least one list, and no empty list")
    return lists


def check_names(text: str) -> None:
    """Raise `Invalid` if an object in a list has a name twice: decoders keep only the last value."""
    if is_output(text):
        return

    def unique(pairs: list[tuple[str, object]]) -> None:
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise Invalid(f"names {quote(name[:SHOWN])} twice in the same object")
            seen.add(name)

    # The text was decoded before, so its levels are limited. Numbers stay texts, because long
    # numbers are slow to convert.
    json.loads(text, object_pairs_hook=unique, parse_int=str, parse_float=str)


class GateElse(StrEnum):
    """The decision about a step whose gate is not passed in time."""

    REJECT = "reject"
    APPROVE = "approve"


class Allowance(msgspec.Struct, frozen=True):
    """The number of elements of a step that may fail, or their share in percent."""

    number: int = 0
    is_percent: bool = False

    def of(self, total: int) -> int:
        """Return the number of elements that may fail, in a step with `total` elements."""
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


def condition(text: str) -> str:
    """Check the length of a condition, and return the condition. `daemon/flow` parses it later."""
    if not text.strip():
        raise Invalid("must be a filter expression")
    if len(text) > MAX_CONDITION_LENGTH:
        raise Invalid(f"must be at most {MAX_CONDITION_LENGTH} characters long")
    return text


def question(text: str) -> str:
    """Check the question of a gate, and return the question. Raises `Invalid`."""
    if not text.strip() or len(text) > MAX_QUESTION_LENGTH:
        raise Invalid(f"must be a question of at most {MAX_QUESTION_LENGTH} characters")
    return text


def approvers(text: str) -> tuple[str, ...]:
    """Parse a list of roles and policies, such as `role:release, policy:ops`."""
    entries = names(text)
    if len(entries) > _MOST_APPROVERS:
        raise Invalid(f"must have at most {_MOST_APPROVERS} roles and policies")
    for line in entries:
        kind, colon, name = line.partition(":")
        if kind not in ("role", "policy") or not colon or not name:
            raise Invalid(f"has {quote(line[:SHOWN])}; write role:NAME or policy:NAME")
    return entries


_MOST_APPROVERS = 50

_HIGHEST_EXIT_CODE = 255
_MOST_RANGES = 100

ExitCodes = tuple[tuple[int, int], ...]


class BeginTime(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the time at which a step begins; exactly one of the fields is set.

    `minute` is a time of day, in minutes after midnight. `moment` is a time in nanoseconds since
    the epoch. `delay` is the number of nanoseconds after the needs were met.
    """

    minute: int | None = None
    moment: int | None = None
    delay: int | None = None


_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_LONGEST_DELAY = 8760 * HOUR


def begin_time(text: str) -> BeginTime:
    """Parse a time of day, a date and time, or a delay, such as `22:00` or `+15m`."""
    if match := _TIME_OF_DAY.fullmatch(text):
        return BeginTime(minute=int(match[1]) * 60 + int(match[2]))
    if text.startswith("+"):
        return BeginTime(delay=span(_LONGEST_DELAY)(text[1:]))
    return BeginTime(moment=moment(text))


def zone_name(text: str) -> str:
    """Check the name of a time zone, and return the name. Raises `Invalid`."""
    from daemon.jobspec.cron import zone  # imported late: few jobs name a time zone

    try:
        zone(text)
    except Invalid:
        raise Invalid("must be a name in the time zone database, such as Europe/Berlin") from None
    return text


def exit_codes(text: str) -> ExitCodes:
    """Parse a list of exit codes and ranges, such as `75, 100-110`."""
    ranges = []
    for name in names(text):
        first, dash, last = name.partition("-")
        try:
            code = number(1, _HIGHEST_EXIT_CODE)
            ranges.append((code(first), code(last if dash else first)))
        except Invalid:
            raise Invalid(
                f"has {quote(name[:SHOWN])}; write exit codes from 1 to 255 and ranges, "
                "such as 75, 100-110"
            ) from None
        if ranges[-1][0] > ranges[-1][1]:
            raise Invalid(f"has the range {quote(name)}, whose first code is higher than its last")
    if len(ranges) > _MOST_RANGES:
        raise Invalid(f"must have at most {_MOST_RANGES} codes and ranges")
    return tuple(ranges)


MAX_OUTPUTS = 128  # names of a task group
OUTPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_OUTPUT_NAME = 128  # characters


def is_output_name(text: str) -> bool:
    """Return whether a string can name an output of a step."""
    return len(text) <= _LONGEST_OUTPUT_NAME and OUTPUT_NAME.fullmatch(text) is not None


def outputs(text: str) -> tuple[str, ...]:
    """Parse the list of outputs that a step must write."""
    output_names = names(text)
    if len(output_names) > MAX_OUTPUTS:
        raise Invalid(f"must have at most {MAX_OUTPUTS} names")
    for name in output_names:
        if not is_output_name(name):
            raise Invalid(
                f"contains the invalid name {quote(name[:_LONGEST_OUTPUT_NAME])}; a name consists "
                "of letters, digits and _, and does not begin with a digit"
            )
    return output_names


MAX_PATTERNS = 32  # patterns of one task
_LONGEST_PATTERN = 1024  # characters
_NEVER_KEPT = frozenset({"secrets", "private"})  # directories of a task


def patterns(text: str) -> tuple[str, ...]:
    """Parse the patterns of the files to keep: relative paths, separated by commas."""
    file_patterns = names(text)
    if len(file_patterns) > MAX_PATTERNS:
        raise Invalid(f"must have at most {MAX_PATTERNS} patterns")
    for name in file_patterns:
        parts = name.split("/")
        if len(name) > _LONGEST_PATTERN or "\0" in name:
            raise Invalid(f"has the pattern {quote(name[:SHOWN])}, which is not a valid path")
        if any(part in ("", ".", "..") for part in parts):
            raise Invalid(
                f"has the pattern {quote(name[:SHOWN])}; write a path below the task directory, such "
                "as out/*.csv, or below alloc/"
            )
        if parts[0] in _NEVER_KEPT:
            raise Invalid(f"has the pattern {quote(name[:SHOWN])}; secrets cannot be kept")
        if parts[0] == "alloc" and len(parts) == 1:
            raise Invalid(
                f"has the pattern {quote(name)}; write a path below alloc/, such as alloc/data/*"
            )
        if parts[-1] == "**":
            raise Invalid(
                f"has the pattern {quote(name[:SHOWN])}; write {quote(name[:SHOWN] + '/*')}"
            )
    return file_patterns


_MOST_STEP_QUEUES = 8


def step_queues(text: str) -> tuple[str, ...]:
    """Parse the queues of a step: distinct names, separated by commas."""
    queue_names = names(text)
    if len(queue_names) > _MOST_STEP_QUEUES:
        raise Invalid(f"must have at most {_MOST_STEP_QUEUES} queues")
    for name in queue_names:
        if not QUEUE_LETTERS.fullmatch(name):
            raise Invalid(
                f"has {quote(name[:SHOWN])}; a queue has a name of 1 to {LONGEST_QUEUE} letters, "
                "digits, -, _ and ."
            )
    return queue_names
