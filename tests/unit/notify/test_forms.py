"""Messages as text and in the formats of receivers; whole bodies are in `golden/`."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from daemon.net.http_client import allow_all
from daemon.notify import forms, message, words
from daemon.notify.delivery import Delivery
from daemon.notify.message import Context, NotificationWithContext
from storage.records.notification import NotifyEvent
from tests.samples import NOW
from tests.unit.notify.batches import FAILURE, RECOVERY, batch

GOLDEN = Path(__file__).parent / "golden"
SAMPLE = Delivery(
    receivers={}, commands={}, permit=allow_all, now=lambda: NOW, node_name="vm1"
).sample(site="https://vm1")
MANY = batch(FAILURE, RECOVERY, rest=(FAILURE.notification,) * 48, number="c-7-56-50")
BODIES: dict[str, Callable[[], bytes]] = {
    "slack": lambda: forms.slack(batch(FAILURE)),
    "slack-group": lambda: forms.slack(MANY),
    "ntfy": lambda: forms.ntfy(batch(FAILURE), "night"),
    "ntfy-recovery": lambda: forms.ntfy(batch(RECOVERY), "night"),
    "alertmanager": lambda: forms.alertmanager(batch(FAILURE, RECOVERY)),
    "alertmanager-test": lambda: forms.alertmanager(SAMPLE),
    "webhook": lambda: message.batch_body(batch(FAILURE)),
    "webhook-group": lambda: message.batch_body(MANY),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_matches_the_recording(name: str) -> None:
    recorded = msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes())
    assert msgspec.json.decode(BODIES[name]()) == recorded


def told(telling: NotificationWithContext, **fields: object) -> NotificationWithContext:
    return msgspec.structs.replace(
        telling, notification=msgspec.structs.replace(telling.notification, **fields)
    )


def in_state(state: str) -> NotificationWithContext:
    return NotificationWithContext(notification=FAILURE.notification, context=Context(state=state))


@pytest.mark.parametrize(
    ("telling", "said"),
    [
        (in_state("degraded"), "backup is degraded: it broke"),
        (in_state("failing"), "backup is failing: it broke"),
        (in_state("blocked"), "backup is blocked: it broke"),
        (in_state("failed"), "backup failed: it broke"),
        (in_state("running"), "backup failed: it broke"),
        (RECOVERY, "ops/web: running again after 3 failures, 12 min"),
        (told(RECOVERY, event=NotifyEvent.MISSED, reason="why"), "ops/web missed a run: why"),
        (told(RECOVERY, event=NotifyEvent.LATE, reason="why"), "ops/web runs late: why"),
        (
            told(RECOVERY, event=NotifyEvent.APPROVAL, reason="why"),
            "ops/web waits for approval: why",
        ),
        (told(in_state("failed"), reason="x" * 300), f"backup failed: {'x' * 184}…"),
    ],
)
def test_subject_contains_the_state(telling: NotificationWithContext, said: str) -> None:
    assert words.subject(batch(telling)) == said


def test_fifty_failures_are_one_subject() -> None:
    assert words.subject(MANY) == "49 failures, 1 recovery: backup, ops/web"
    jobs = [told(FAILURE, job_id=f"job-{number}") for number in range(5)]
    assert words.subject(batch(*jobs)) == "5 failures: job-0, job-1, job-2 and 2 more"


def test_a_text_has_no_control_characters() -> None:
    text = words.text(
        batch(told(in_state("failed"), reason="\x1b[31mred\x1b[0m\a \x9b1m\u2028end"))
    )
    assert "backup failed: red 1mend\n" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028]", text)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("<!channel> & <http://evil|x>", "&lt;!channel&gt; &amp; &lt;http://evil|x&gt;"),
        ("@channel", "@\u200bchannel"),
        ("`code` *bold*", "'code' ∗bold∗"),  # noqa: RUF001  # the result of the escape
    ],
)
def test_text_cannot_become_a_mention_or_link_in_slack(said: str, shown: str) -> None:
    body = msgspec.json.decode(forms.slack(batch(told(in_state("failed"), reason=said))))
    assert body["text"].splitlines()[0] == f"*backup failed: {shown}*"


def test_error_lines_do_not_leave_their_block_in_slack() -> None:
    body = msgspec.json.decode(forms.slack(_with_lines("```\n<!here>\n```")))
    assert body["text"].count("```") == 2
    assert "<" not in body["text"]


def _with_lines(stderr: str) -> message.Batch:
    assert FAILURE.context.error is not None
    error = msgspec.structs.replace(FAILURE.context.error, stderr=stderr)
    context = msgspec.structs.replace(FAILURE.context, error=error)
    return batch(NotificationWithContext(notification=FAILURE.notification, context=context))


def test_long_text_is_truncated_at_the_start() -> None:
    long = _with_lines("é" * 9000 + "\nthe end\n")
    shown = msgspec.json.decode(forms.slack(long))["text"]
    assert len(shown) < 4100
    assert shown.endswith("the end\n```")
    message_ = msgspec.json.decode(forms.ntfy(long, "night"))["message"]
    assert len(message_.encode()) <= 4096
    assert message_.endswith("the end\n")


def test_alert_has_the_start_of_the_first_message_and_the_newest_state() -> None:
    later = told(FAILURE, event=NotifyEvent.RECOVERY, create_time=NOW + 10**9, failing_since=0)
    (alert,) = msgspec.json.decode(forms.alertmanager(batch(FAILURE, later)))
    assert alert["startsAt"] == "2026-11-21T01:28:00Z"
    assert alert["endsAt"] == "2026-11-21T01:40:01Z"
