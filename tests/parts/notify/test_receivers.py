"""Configured receivers are grouped, bounded and tested, and none of them delays another."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
import trio
import trio.testing

from daemon.notify import attempts
from storage.errors import NotFound
from storage.queries import notifications
from storage.records.base import MINUTE, SECOND
from storage.records.notification import (
    Notification,
    NotifyEvent,
    NotifySettings,
    Receiver,
    ReceiverKind,
    Streak,
)
from storage.store import Store
from storage.writer import Transaction
from tests.fakes.receiver import Receiver as FakeReceiver
from tests.fakes.receiver import open_receiver
from tests.parts.evals.cluster import Ticking
from tests.parts.notify.test_sender import at_work, later, of
from tests.samples import NOW
from tests.time_limits import HAPPENS_WITHIN

ALL = tuple(NotifyEvent)


@pytest.fixture
async def fake() -> AsyncIterator[FakeReceiver]:
    async with open_receiver() as made:
        yield made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    return file


def write(file: Path, text: str) -> None:
    file.write_text(text)


def slack(fake: FakeReceiver, secret: Path) -> Receiver:
    secret.write_text(fake.url)
    return Receiver(kind=ReceiverKind.SLACK, secret_file=str(secret))


def alertmanager(fake: FakeReceiver, **fields: object) -> Receiver:
    receiver = Receiver(kind=ReceiverKind.ALERTMANAGER, url=fake.url.partition("/hook")[0])
    return msgspec.structs.replace(receiver, **fields)


async def fail(
    store: Store, *job_ids: str, receivers: tuple[str, ...] = ("chat",), now: int = NOW
) -> None:
    """Let jobs fail in one write."""
    notify_settings = NotifySettings(events=ALL, receivers=receivers)

    def write(tx: Transaction) -> None:
        for job_id in job_ids:
            notifications.add(
                tx,
                ("default", job_id),
                notify_settings,
                NotifyEvent.FAILURE,
                run_id=job_id,
                reason="it broke",
                now=now,
                streak=Streak(failures=2, failing_since=now - MINUTE),
            )

    await store.write(write)


async def until_tried(store: Store, job_id: str, attempts: int = 1) -> Notification:
    with trio.fail_after(HAPPENS_WITHIN):
        while True:
            with store.watch(notifications.topic("default", job_id)) as changes:
                one = of(store, job_id)[0]
                if one.attempts >= attempts:
                    return one
                await changes.wait()


async def test_fifty_failures_are_sent_as_one_message(
    store: Store, fake: FakeReceiver, secret: Path
) -> None:
    clock = Ticking()
    async with at_work(store, clock, receivers={"chat": slack(fake, secret)}):
        await fail(store, *(f"job-{number}" for number in range(30)))
        clock.time += 5 * SECOND
        await fail(store, *(f"job-{number}" for number in range(30, 50)), now=clock.now())
        await trio.testing.wait_all_tasks_blocked()
        assert fake.received == []
        await later(store, clock, 5 * SECOND)
        assert (await until_tried(store, "job-49")).status == "sent"
        assert {of(store, f"job-{number}")[0].status for number in range(50)} == {"sent"}
    (one,) = fake.received
    text = one.told["text"]
    assert text.startswith("*50 failures: job-0, job-1, job-2 and 47 more*")
    assert "job-4 failed: it broke" in text
    assert "And 45 more:\n  job-5: failure: it broke" in text
    assert one.path == "/hook?key=secret"


async def test_group_of_notifications_is_retried_as_a_whole(
    store: Store, fake: FakeReceiver
) -> None:
    clock = Ticking()
    fake.answers = [503]
    chat = alertmanager(fake, group_seconds=0)
    async with at_work(store, clock, receivers={"chat": chat}):
        await fail(store, "a", "b")
        one = await until_tried(store, "b")
        assert (one.status, one.error) == ("pending", "the receiver answered with 503")
        await later(store, clock, SECOND)
        assert (await until_tried(store, "b", 2)).status == "sent"
    assert [len(request.told) for request in fake.received] == [2, 2]
    assert fake.received[0].path == "/api/v2/alerts"
    assert store.read(notifications.totals) == {("chat", "sent"): 2}


async def test_unresponsive_receiver_delays_no_other(
    store: Store, fake: FakeReceiver, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ATTEMPT", 10 * HAPPENS_WITHIN)
    chat = msgspec.structs.replace(slack(fake, secret), group_seconds=0)
    receivers = {"chat": chat, "alerts": alertmanager(fake, group_seconds=0)}
    fake.answers = [0]
    async with at_work(store, Ticking(), receivers=receivers):
        await fail(store, "slow")
        await fake.until(1)
        await fail(store, "quick", receivers=("alerts",))
        assert (await until_tried(store, "quick")).status == "sent"
        assert of(store, "slow")[0].attempts == 0


async def test_notification_beyond_the_limit_is_dropped_and_counted(store: Store) -> None:
    limit = notifications.MOST_PENDING
    await fail(store, *(f"job-{number}" for number in range(limit + 2)))
    assert store.read(notifications.totals) == {
        ("chat", "dropped"): 2,
        ("chat", "pending"): limit,
    }
    (one,) = of(store, f"job-{limit}")
    assert (one.status, one.error) == ("failed", "dropped: 1000 messages were waiting already")
    await fail(store, "other", receivers=("alerts",))
    assert of(store, "other")[0].status == "pending"


async def test_receiver_removed_from_the_configuration_is_reported(store: Store) -> None:
    async with at_work(store, Ticking()):
        await fail(store, "web")
        one = await until_tried(store, "web")
    assert (one.status, one.error) == (
        "pending",
        "the configuration has no receiver chat in notify_receivers",
    )


async def test_a_webhook_of_the_configuration_is_signed_with_its_secret(
    store: Store, fake: FakeReceiver, secret: Path
) -> None:
    write(secret, "whsec_" + "A" * 32 + "\n")
    hook = Receiver(
        kind=ReceiverKind.WEBHOOK, url=fake.url, secret_file=str(secret), group_seconds=0
    )
    async with at_work(store, Ticking(), receivers={"chat": hook}):
        await fail(store, "web")
        await until_tried(store, "web")
    (one,) = fake.received
    assert one.headers["webhook-signature"].startswith("v1,")
    assert one.told["data"]["failed_in_a_row"] == 2
    assert one.told["data"]["failing_since"] == "2026-11-21T01:39:00Z"


# ---- a test of receivers ----------------------------------------------------------------------------


async def test_receiver_test_reports_the_result_of_each_receiver(
    store: Store, fake: FakeReceiver, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHONE_TOKEN", "tk_x")
    receivers = {
        "chat": slack(fake, secret),
        "alerts": alertmanager(fake, secret_env="NO_SUCH_TOKEN"),
        "phone": Receiver(
            kind=ReceiverKind.NTFY, url=fake.url.split("?")[0], secret_env="PHONE_TOKEN"
        ),
    }
    commands = {"mail": ["/bin/true"], "pager": ["/bin/false"]}
    async with at_work(store, Ticking(), commands, receivers) as opened:
        results = await opened.test()
        (alone,) = await opened.test("phone")
        with pytest.raises(NotFound, match=r'no receiver "nigth" in .*: alerts, chat, mail, pager'):
            await opened.test("nigth")
    assert [(result.name, result.kind, result.is_sent, result.answer) for result in results] == [
        (
            "alerts",
            "alertmanager",
            False,
            "the daemon has no environment variable NO_SUCH_TOKEN",
        ),
        ("chat", "slack", True, "200"),
        ("mail", "command", True, "status 0"),
        ("pager", "command", False, "the command pager ended with status 1"),
        ("phone", "ntfy", True, "200"),
    ]
    assert alone.is_sent
    sent = next(request for request in fake.received if "topic" in request.told)
    assert (sent.path, sent.told["topic"]) == ("/", "hook")
    assert sent.headers["authorization"] == "Bearer tk_x"


async def test_error_text_does_not_contain_the_secret_address(store: Store, secret: Path) -> None:
    write(secret, "http://127.0.0.1:1/T000/hunter2/x y")
    chat = Receiver(kind=ReceiverKind.SLACK, secret_file=str(secret))
    async with at_work(store, Ticking(), receivers={"chat": chat}) as opened:
        (result,) = await opened.test()
    assert not result.is_sent
    assert "hunter2" not in result.answer


async def test_fake_receiver_survives_a_connection_without_a_request(fake: FakeReceiver) -> None:
    port = httpx.URL(fake.url).port
    assert port
    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
    async with httpx.AsyncClient() as client:
        assert (await client.post(fake.url, json={})).status_code == 200
    assert len(fake.received) == 1
