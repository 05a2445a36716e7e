"""What is sent: the message, its signature, and when it is tried again; pure.

Form and signature are those of the Standard Webhooks specification (1.0.0): the id, the time of
the attempt and the body are signed together, so that a receiver knows who sent it, that it is
fresh, and whether it has seen it before.
"""

import base64
import hashlib
import hmac

import msgspec

from storage.errors import Invalid
from storage.records.base import HOUR, SECOND
from storage.records.notification import Notification
from storage.records.times import rfc3339

MOST_ATTEMPTS = 15
GIVEN_UP_AFTER = 24 * HOUR
_FIRST_PAUSE = SECOND
_LONGEST_PAUSE = 4 * HOUR
_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a message says; the names are those of its JSON."""

    namespace: str
    job_id: str
    run_id: str
    reason: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is sent."""

    id: str
    type: str
    timestamp: str
    data: Facts


def message_id(cluster_id: str, one: Notification) -> str:
    """Return the id of a message: the same for every attempt, and of no other message anywhere."""
    return f"{cluster_id}-{one.id}"


def body(message: str, one: Notification) -> bytes:
    """Return a notification as JSON; `message` is its id."""
    facts = Facts(namespace=one.namespace, job_id=one.job_id, run_id=one.run_id, reason=one.reason)
    told = Message(
        id=message,
        type=f"job.{one.event}",
        timestamp=rfc3339(one.create_time),
        data=facts,
    )
    return msgspec.json.encode(told)


def read_secret(text: str) -> bytes:
    """Return the key that a secret stands for. Raises `Invalid`."""
    prefix, mark, encoded = text.partition(_PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if prefix or not mark or len(key) not in _SECRET_BYTES:
        raise Invalid(f"must be {_PREFIX} and, in base64, 24 to 64 random bytes")
    return key


def signed(message: str, at: int, text: bytes, key: bytes) -> dict[str, str]:
    """Return the headers of a message; `at` is the time of the attempt in nanoseconds."""
    seconds = str(at // SECOND)
    whole = b".".join((message.encode(), seconds.encode(), text))
    signature = base64.b64encode(hmac.new(key, whole, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{signature}",
    }


def pause(attempts: int, chance: float) -> int:
    """Return how long to wait after so many attempts; `chance` is uniform in [0, 1).

    >>> [pause(n, 0.5) // SECOND for n in (1, 2, 3, 9)]
    [1, 4, 16, 14400]
    """
    grown = min(_FIRST_PAUSE * 4 ** (attempts - 1), _LONGEST_PAUSE)
    return int(grown * (0.8 + 0.4 * chance))


def is_given_up(one: Notification, attempts: int, next_attempt: int) -> bool:
    """Tell whether there is no further attempt: there were enough, or it would come too late."""
    return attempts >= MOST_ATTEMPTS or next_attempt > one.create_time + GIVEN_UP_AFTER
