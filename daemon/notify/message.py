"""Messages: content, signature, and retry times. No I/O.

Format and signature follow the Standard Webhooks specification (1.0.0). ID, time of the attempt and
body are signed together. A receiver can therefore verify the sender and the time, and detect
duplicates.
"""

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Sequence

import msgspec

from storage.errors import Invalid
from storage.records.base import HOUR, SECOND
from storage.records.notification import Notification, NotifyEvent
from storage.records.times import rfc3339

MOST_ATTEMPTS = 15
GIVEN_UP_AFTER = 24 * HOUR
_FIRST_PAUSE = SECOND
_LONGEST_PAUSE = 4 * HOUR
_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)


class FailureCause(msgspec.Struct, frozen=True, kw_only=True):
    """The newest error of the run. `stderr` has the last lines of the standard error.

    `signal` is the name of the signal that ended the attempt. `attempt` is the number of the
    attempt, counted from 1.
    """

    summary: str
    group: str
    task: str
    allocation_id: str
    exit_code: int
    signal: str
    oom_killed: bool
    restarts: int
    attempt: int
    stderr: str


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The context of an event: the root cause, and links to more information.

    `failed_in_a_row` counts failures since the last success, `failing_since` is the time of the
    first of these failures. `last_success` is the time of the last success. Both times are RFC 3339
    text.
    """

    host: str = ""
    state: str = ""
    error: FailureCause | None = None
    failed_in_a_row: int = 0
    failing_since: str = ""
    last_success: str = ""
    link: str = ""
    command: str = ""


class NotificationPayload(Context, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a message; the fields are named as in its JSON."""

    namespace: str
    job_id: str
    run_id: str
    reason: str


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one notification, with the fields of its JSON."""

    id: str
    type: str
    timestamp: str
    data: NotificationPayload


class NotificationWithContext(msgspec.Struct, frozen=True, kw_only=True):
    """A notification with its context."""

    notification: Notification
    context: Context = Context()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Notifications for a receiver in one message, oldest first.

    `first` holds the first few with their contexts, `rest` all others. `node_name` is the name of
    the sending node. A test batch has one notification about a job that does not exist.
    """

    id: str
    first: tuple[NotificationWithContext, ...]
    rest: tuple[Notification, ...] = ()
    node_name: str = ""
    is_test: bool = False

    @property
    def notifications(self) -> list[Notification]:
        """Return all notifications."""
        return [*(entry.notification for entry in self.first), *self.rest]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of notifications per event, in the order of `NotifyEvent`."""
        counts = Counter(notification.event for notification in self.notifications)
        return {str(event): counts[event] for event in NotifyEvent if counts[event]}


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a message about several notifications.

    It has the counts, the first few notifications, and the number of the other notifications.
    """

    counts: dict[str, int]
    first: list[NotificationPayload]
    more: int


class GroupMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message about several notifications, with the fields of its JSON."""

    id: str
    type: str
    timestamp: str
    data: GroupFacts


_NO_CONTEXT = Context()


def message_id(cluster_id: str, notification: Notification) -> str:
    """Return the ID of a message: equal for all its attempts, and globally unique."""
    return f"{cluster_id}-{notification.id}"


def batch_id(cluster_id: str, entries: Sequence[Notification]) -> str:
    """Return the ID of a message about these notifications; different sets have different IDs."""
    first, last = entries[0], entries[-1]
    if first is last:
        return message_id(cluster_id, first)
    return f"{cluster_id}-{first.id}-{last.id}-{len(entries)}"


def facts_of(notification: Notification, context: Context = _NO_CONTEXT) -> NotificationPayload:
    """Return the content of a message about a notification."""
    return NotificationPayload(
        namespace=notification.namespace,
        job_id=notification.job_id,
        run_id=notification.run_id,
        reason=notification.reason,
        **msgspec.structs.asdict(context),
    )


def body(message: str, notification: Notification, context: Context = _NO_CONTEXT) -> bytes:
    """Return a notification as JSON; `message` is the ID of the message."""
    return msgspec.json.encode(
        _message(message, f"job.{notification.event}", notification, context)
    )


def _message(
    message: str, kind: str, notification: Notification, context: Context
) -> OutgoingMessage:
    return OutgoingMessage(
        id=message,
        type=kind,
        timestamp=rfc3339(notification.create_time),
        data=facts_of(notification, context),
    )


def batch_body(batch: Batch) -> bytes:
    """Return a batch as JSON: an `OutgoingMessage` for one notification, else a `GroupMessage`."""
    first = batch.first[0]
    if len(batch.notifications) == 1:
        kind = "test" if batch.is_test else f"job.{first.notification.event}"
        return msgspec.json.encode(_message(batch.id, kind, first.notification, first.context))
    message = GroupMessage(
        id=batch.id,
        type="job.group",
        timestamp=rfc3339(first.notification.create_time),
        data=GroupFacts(
            counts=batch.counts,
            first=[facts_of(entry.notification, entry.context) for entry in batch.first],
            more=len(batch.rest),
        ),
    )
    return msgspec.json.encode(message)


def read_secret(text: str) -> bytes:
    """Return the key in the secret of a webhook. Raises `Invalid`."""
    prefix, mark, encoded = text.partition(_PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if prefix or not mark or len(key) not in _SECRET_BYTES:
        raise Invalid(f"must be {_PREFIX} followed by 24 to 64 random bytes in base64")
    return key


def signature(message: str, time: int, text: bytes, key: bytes) -> dict[str, str]:
    """Return the headers that sign a message with the ID `message` and the body `text`.

    `time` is the time of the attempt in nanoseconds.
    """
    seconds = str(time // SECOND)
    signed = b".".join((message.encode(), seconds.encode(), text))
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{signature}",
    }


def retry_delay(attempts: int, random: float) -> int:
    """Return the delay in nanoseconds after a number of attempts; `random` is uniform in [0, 1).

    >>> [retry_delay(n, 0.5) // SECOND for n in (1, 2, 3, 9)]
    [1, 4, 16, 14400]
    """
    grown = min(_FIRST_PAUSE * 4 ** (attempts - 1), _LONGEST_PAUSE)
    return int(grown * (0.8 + 0.4 * random))


def is_expired(notification: Notification, attempts: int, next_attempt: int) -> bool:
    """Return whether the number of attempts or the elapsed time forbids another attempt."""
    return attempts >= MOST_ATTEMPTS or next_attempt > notification.create_time + GIVEN_UP_AFTER
