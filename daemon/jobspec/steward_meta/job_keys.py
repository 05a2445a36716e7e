"""Keys in the meta of a job: launches, children, notifications, runs, queues and triggers."""

import re
from enum import StrEnum
from typing import Any

import msgspec

from daemon.jobspec.steward_meta.key import (
    LONGEST_QUEUE,
    SHOWN,
    MetaExtension,
    calendar_name,
    flag,
    least_span,
    names,
    number,
    one_of,
    span,
)
from daemon.jobspec.steward_meta.step_values import OnFailure
from daemon.text.go_format import quote
from storage.errors import Invalid
from storage.records import flow, notification
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.flow import Beyond, RunUpdate, TriggerJoin, TriggerWhen
from storage.records.job import Job
from storage.records.notification import NotifyEvent
from storage.records.periodic import OF_JOB

_MAX_AFTER_META = 64 * 1024  # bytes
_MOST_PASSED = 128  # names
_TEXTS = msgspec.json.Decoder(dict[str, str])
PASSED = re.compile(
    r"\$\{(?:meta\.(?P<meta>[A-Za-z0-9_.-]+)|run\.(?P<run>job|namespace|number|status)"
    r"|output\.(?P<step>[A-Za-z0-9_-]+)(?:\[(?P<element>[0-9]{1,5})\])?"
    r"\.(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}"
)


def after_meta(text: str) -> dict[str, str]:
    """Parse the meta for the job that a run triggers: a JSON object of strings.

    The strings can contain references to the run, such as `${run.number}`.
    """
    if len(text) > _MAX_AFTER_META:
        raise Invalid(f"must be at most {_MAX_AFTER_META} bytes long")
    try:
        passed_meta = _TEXTS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Invalid('must be a JSON object of strings, such as {"day": "${meta.day}"}') from None
    if len(passed_meta) > _MOST_PASSED:
        raise Invalid(f"has {len(passed_meta)} names; the maximum is {_MOST_PASSED}")
    for name, value in passed_meta.items():
        rest = PASSED.sub("", value)
        if "${" in rest:
            wrong = rest[rest.index("${") :][:SHOWN]
            raise Invalid(
                f"has {quote(wrong)} in {quote(name[:SHOWN])}; write ${{meta.NAME}}, "
                "${output.STEP.NAME}, ${run.job}, ${run.namespace}, ${run.number} or ${run.status}"
            )
    return passed_meta


def meta_name(text: str) -> str:
    """Check the name of a meta key, and return the name. Raises `Invalid`."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", text):
        raise Invalid("must be the name of a meta key")
    return text


class ClosedPolicy(StrEnum):
    """The treatment of a slot while the calendar of the job is closed."""

    SKIP = "skip"
    NEXT = "next"  # all slots until the next opening result in one launch at the opening


_MOST_MONTH_DAYS = 31


def month_days(text: str) -> tuple[int, ...]:
    """Parse numbers of days of a month, such as `1, -1`; negative numbers count from the end."""
    days = []
    for name in names(text):
        digits = name.removeprefix("-")
        try:
            days.append(number(1, _MOST_MONTH_DAYS)(digits) * (-1 if name[0] == "-" else 1))
        except Invalid:
            raise Invalid(
                f"has {quote(name[:SHOWN])}; write days of the month from 1 to 31, or from -1 to -31, "
                "which count from the end of the month"
            ) from None
    return tuple(days)


_QUEUE = re.compile(r"(?:[A-Za-z0-9_.-]|\$\{NOMAD_META_[A-Za-z0-9_.-]+\})+")


def queue(text: str) -> str:
    """Check the name of a queue, which may refer to meta keys of the job; return the name."""
    if len(text) > LONGEST_QUEUE or not _QUEUE.fullmatch(text):
        raise Invalid(
            f"must be a name of at most {LONGEST_QUEUE} letters, digits, -, _ and ., "
            "possibly with ${NOMAD_META_NAME}"
        )
    return text


class CatchUpPolicy(StrEnum):
    """The treatment of slots that passed while the daemon was not running."""

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

RUNS_KEPT = MetaExtension(
    name="steward_runs_kept", place="job", read=number(1, 1_000_000), default=100
)

RUN_TIMEOUT = MetaExtension[int | None](
    name="steward_run_timeout", place="job", read=least_span(SECOND, 8760 * HOUR), default=None
)
RUN_CLEANUP = MetaExtension(
    name="steward_run_cleanup", place="job", read=span(8760 * HOUR), default=10 * MINUTE
)
RUN_UPDATE = MetaExtension(
    name="steward_run_update", place="job", read=one_of(RunUpdate), default=RunUpdate.REPLACE
)
RUN_PARALLEL = MetaExtension[int | None](
    name="steward_run_parallel", place="job", read=number(1, 10_000), default=None
)
RUN_ON_FAILURE = MetaExtension(
    name="steward_run_on_failure",
    place="job",
    read=one_of(OnFailure),
    default=OnFailure.GO_ON,
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

JOB_KEYS: tuple[MetaExtension[Any], ...] = (
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
    RUNS_KEPT,
    RUN_TIMEOUT,
    RUN_CLEANUP,
    RUN_UPDATE,
    RUN_PARALLEL,
    RUN_ON_FAILURE,
)


def queue_of(job: Job) -> str:
    """Return the queue of a job's runs, with its references resolved; empty without a queue."""
    return flow.resolved_queue(RUN_QUEUE.of(job.meta), job.meta)
