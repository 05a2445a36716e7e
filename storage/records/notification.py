"""Notifications: what somebody outside is told of a job, and how the telling goes.

What is wished for stands in the job's meta (docs/notifications.md).
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from storage.errors import Invalid
from storage.records.base import Record, SparseRecord

EVENTS = "steward_notify"
WEBHOOK = "steward_notify_webhook"
COMMAND = "steward_notify_command"
_LONGEST_URL = 2000
_PRINTABLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class NotifyEvent(StrEnum):
    """What one is told of."""

    FAILURE = "failure"
    RECOVERY = "recovery"
    MISSED = "missed"
    LATE = "late"


class NotificationStatus(StrEnum):
    """How far the telling is."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


class Wishes(SparseRecord, frozen=True, kw_only=True):
    """What is told of a job, and by which ways; an empty one is not used."""

    events: tuple[NotifyEvent, ...]
    webhook: str = ""
    command: str = ""


class Notification(Record, frozen=True, kw_only=True):
    """One thing that is told by one way; times in nanoseconds, 0 for none."""

    id: int
    namespace: str
    job_id: str  # whose wish it is: of a child, the parent
    run_id: str  # the job that it is about: a child, or the job itself
    event: NotifyEvent
    reason: str
    webhook: str = ""  # one of these two
    command: str = ""
    status: NotificationStatus = NotificationStatus.PENDING
    attempts: int = 0
    next_attempt: int = 0
    error: str = ""  # of the last attempt
    create_time: int
    modify_time: int
    create_index: int = 0
    modify_index: int = 0


def wishes(meta: Mapping[str, str] | None) -> Wishes | None:
    """Return what meta wishes for; None: nobody is told anything, or what is there means nothing."""
    given = meta or {}
    try:
        wanted = Wishes(
            events=read_events(given[EVENTS]) if EVENTS in given else tuple(NotifyEvent),
            webhook=read_webhook(given[WEBHOOK]) if WEBHOOK in given else "",
            command=read_command(given[COMMAND]) if COMMAND in given else "",
        )
    except Invalid:  # what cannot be read is refused when the job comes in
        return None
    return wanted if wanted.webhook or wanted.command else None


def read_events(text: str) -> tuple[NotifyEvent, ...]:
    """Read the names of events between commas. Raises `Invalid`."""
    try:
        return tuple(NotifyEvent(name.strip()) for name in text.split(","))
    except ValueError:
        raise Invalid(f"must be one or more of {', '.join(NotifyEvent)}") from None


def read_webhook(text: str) -> str:
    """Read an address to which something can be posted. Raises `Invalid`."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or not _PRINTABLE.fullmatch(text):
        raise Invalid("must be an address like https://HOST/PATH")
    if parts.username is not None or parts.fragment:
        raise Invalid("must have neither a user nor a part behind a #")
    if len(text) > _LONGEST_URL:
        raise Invalid(f"must have at most {_LONGEST_URL} characters")
    return text


def read_command(text: str) -> str:
    """Read the name of a command. Raises `Invalid`."""
    if not _NAME.fullmatch(text):
        raise Invalid(
            "must be the name of one of notify_commands in the daemon's configuration: letters, "
            "digits, - and _"
        )
    return text


def shown_webhook(url: str) -> str:
    """Return an address without its query, which may hold a secret."""
    return url.partition("?")[0]


def encoded(wanted: Wishes | None) -> str:
    """Return wishes as they are stored; empty for none."""
    return msgspec.json.encode(wanted).decode() if wanted else ""


def decoded(text: str) -> Wishes:
    """Return wishes that have been stored."""
    return msgspec.json.decode(text, type=Wishes)
