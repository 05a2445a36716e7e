"""Messages: texts, signatures and retries."""

import base64

import msgspec
import pytest

from daemon.notify import message
from storage.errors import Invalid
from storage.records.base import HOUR, SECOND
from storage.records.notification import Notification, NotifyEvent
from tests.samples import NOW

ONE = Notification(
    id=7,
    namespace="default",
    job_id="backup",
    run_id="backup/periodic-1",
    event=NotifyEvent.FAILURE,
    reason="it broke",
    create_time=NOW,
    modify_time=NOW,
)


def test_message_has_the_event_the_job_and_the_time() -> None:
    assert msgspec.json.decode(message.body("c-7", ONE)) == {
        "id": "c-7",
        "type": "job.failure",
        "timestamp": "2026-11-21T01:40:00Z",
        "data": {
            "namespace": "default",
            "job_id": "backup",
            "run_id": "backup/periodic-1",
            "reason": "it broke",
        },
    }


def test_message_is_signed_as_specified() -> None:
    # The example of the Standard Webhooks libraries; the sum is that of `openssl dgst -mac HMAC`.
    key = message.read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    at = 1_614_265_330 * SECOND
    assert message.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", at, b'{"test": 2432232314}', key) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def secret(size: int) -> str:
    return "whsec_" + base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_has_24_to_64_bytes(size: int) -> None:
    assert message.read_secret(secret(size)) == bytes(size)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "password",
        "whsec_",
        "whsec_?",
        "x" + secret(24),
        secret(23),
        secret(65),
        "whsec_äääääääääää",
    ],
)
def test_invalid_secret_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="must be whsec_ followed by 24 to 64 random bytes in base64"):
        message.read_secret(text)


def test_retry_delays_grow_to_a_limit_and_are_random() -> None:
    assert [message.retry_delay(n, 0.5) // SECOND for n in (1, 2, 3, 4)] == [1, 4, 16, 64]
    assert message.retry_delay(14, 0.5) == 4 * HOUR
    assert message.retry_delay(3, 0.0) < message.retry_delay(3, 0.5) < message.retry_delay(3, 0.999)


@pytest.mark.parametrize(
    ("attempts", "later", "given_up"),
    [(14, HOUR, False), (15, HOUR, True), (2, 24 * HOUR, False), (2, 24 * HOUR + 1, True)],
)
def test_notification_is_dropped_after_a_day_or_fifteen_attempts(
    attempts: int, later: int, given_up: bool
) -> None:
    assert message.is_expired(ONE, attempts, NOW + later) is given_up
