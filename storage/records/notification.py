"""Notifications about a job to external receivers, and their delivery.

The job's meta configures them (docs/notifications.md).
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
RECEIVERS = "steward_notify_to"
MOST_RECEIVERS = 8  # per job
_LONGEST_URL = 2000
_PRINTABLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class NotifyEvent(StrEnum):
    """The event of a notification."""

    FAILURE = "failure"
    RECOVERY = "recovery"
    MISSED = "missed"
    LATE = "late"
    APPROVAL = "approval"


class NotificationStatus(StrEnum):
    """The status of the delivery of a notification."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


class NotifySettings(SparseRecord, frozen=True, kw_only=True):
    """The events that cause a notification, and the channels. An empty channel is not used."""

    events: tuple[NotifyEvent, ...]
    webhook: str = ""
    command: str = ""
    receivers: tuple[str, ...] = ()


class Streak(SparseRecord, frozen=True, kw_only=True):
    """The number of consecutive failures, and the time of the first one in nanoseconds.

    Both are 0 if there was no failure.
    """

    failures: int = 0
    failing_since: int = 0


class Notification(Record, frozen=True, kw_only=True):
    """One message on one channel. Times are in nanoseconds; 0 means unset."""

    id: int
    namespace: str
    job_id: str  # the job that configures it: for a child, the parent
    run_id: str  # the job of the event: a child, or the job itself
    event: NotifyEvent
    reason: str
    webhook: str = ""  # exactly one of these three is set
    command: str = ""
    receiver: str = ""
    failures: int = 0  # consecutive failures up to this one
    failing_since: int = 0
    status: NotificationStatus = NotificationStatus.PENDING
    attempts: int = 0
    next_attempt: int = 0
    error: str = ""  # of the last attempt
    create_time: int
    modify_time: int
    create_index: int = 0
    modify_index: int = 0


class ReceiverTest(Record, frozen=True, kw_only=True):
    """A request to test a receiver; an empty name means all receivers."""

    name: str = ""


class ReceiverResult(Record, frozen=True, kw_only=True):
    """The result of a receiver test. `answer` is the response, or the connection error."""

    name: str
    kind: str
    is_sent: bool = msgspec.field(name="Sent")
    answer: str
    milliseconds: int


class ReceiverKind(StrEnum):
    """The message format of a receiver."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    SLACK = "slack"
    NTFY = "ntfy"
    ALERTMANAGER = "alertmanager"


class Encryption(StrEnum):
    """The encryption of the connection to a mail server."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class Receiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The destination and format of notifications.

    docs/notifications.md describes the fields of each kind.

    The secret is the signing secret of a webhook, the URL of a Slack-compatible webhook, an access
    token, or the password of a mail server. It is in a file or in an environment variable of the
    daemon, never in the configuration. Events within `group_seconds` after the first one are sent
    in one message.
    """

    kind: ReceiverKind
    url: str = ""
    secret_file: str = ""
    secret_env: str = ""
    server: str = ""  # HOST:PORT
    tls: Encryption = Encryption.STARTTLS
    ca_file: str = ""
    user: str = ""
    sender: str = msgspec.field(default="", name="from")
    to: list[str] = msgspec.field(default_factory=list)
    group_seconds: int = 10


def notify_settings(meta: Mapping[str, str] | None) -> NotifySettings | None:
    """Return the notification settings in a job's meta; None if they are missing or invalid."""
    keys = meta or {}
    try:
        settings = NotifySettings(
            events=read_events(keys[EVENTS]) if EVENTS in keys else tuple(NotifyEvent),
            webhook=read_webhook(keys[WEBHOOK]) if WEBHOOK in keys else "",
            command=read_command(keys[COMMAND]) if COMMAND in keys else "",
            receivers=read_receivers(keys[RECEIVERS]) if RECEIVERS in keys else (),
        )
    except Invalid:  # invalid settings are rejected at registration
        return None
    return settings if settings.webhook or settings.command or settings.receivers else None


def read_events(text: str) -> tuple[NotifyEvent, ...]:
    """Parse event names separated by commas. Raises `Invalid`."""
    try:
        return tuple(NotifyEvent(name.strip()) for name in text.split(","))
    except ValueError:
        raise Invalid(f"must be one or more of {', '.join(NotifyEvent)}") from None


def read_webhook(text: str) -> str:
    """Parse the URL of a webhook. Raises `Invalid`."""
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not _PRINTABLE.fullmatch(text):
        raise Invalid("must be an address like https://HOST/PATH")
    if parts.username is not None or parts.fragment:
        raise Invalid("must have neither a user nor a fragment after #")
    if len(text) > _LONGEST_URL:
        raise Invalid(f"must have at most {_LONGEST_URL} characters")
    return text


def read_command(text: str) -> str:
    """Parse the name of a command. Raises `Invalid`."""
    if not _NAME.fullmatch(text):
        raise Invalid(
            "must be the name of a command in notify_commands in the daemon's configuration, and "
            "may contain letters, digits, - and _"
        )
    return text


def read_receivers(text: str) -> tuple[str, ...]:
    """Parse receiver names separated by commas. Raises `Invalid`."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > MOST_RECEIVERS or not all(map(_NAME.fullmatch, names)):
        raise Invalid(
            f"must be 1 to {MOST_RECEIVERS} receiver names, separated by commas. Each must be defined "
            "in notify_receivers in the daemon's configuration, and may contain letters, digits, "
            "- and _"
        )
    return names


def shown_webhook(url: str) -> str:
    """Return a URL without its query, which may hold a secret."""
    return url.partition("?")[0]


def encoded(settings: NotifySettings | None) -> str:
    """Encode settings for storage; empty for none."""
    return msgspec.json.encode(settings).decode() if settings else ""


def decoded(text: str) -> NotifySettings:
    """Decode stored settings."""
    return msgspec.json.decode(text, type=NotifySettings)
