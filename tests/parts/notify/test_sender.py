"""Sending: retried until it arrives, signed, bounded, and never to a forbidden address."""

import base64
import hashlib
import hmac
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.evals import gc
from daemon.fences import Fences
from daemon.net import egress_policy
from daemon.notify import attempts, message, sender
from daemon.notify.sender import open_notify
from daemon.variables import change
from daemon.variables.change import VariableKey
from storage.errors import StorageUnreadable
from storage.queries import notifications
from storage.queries.variables import VariableLock
from storage.records.base import HOUR, MINUTE
from storage.records.notification import Notification, NotifyEvent, NotifySettings
from storage.records.notification import Receiver as Configured
from storage.store import Store
from storage.writer import Transaction
from tests.fakes.receiver import Received, Receiver, open_receiver
from tests.parts.evals.cluster import Ticking
from tests.parts.variables.test_change import SEAL
from tests.samples import NOW
from tests.time_limits import HAPPENS_WITHIN

KEY = bytes(range(24))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ALL = tuple(NotifyEvent)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as made:
        yield made


@asynccontextmanager
async def at_work(
    store: Store,
    clock: Ticking,
    commands: Mapping[str, list[str]] | None = None,
    receivers: Mapping[str, Configured] | None = None,
) -> AsyncIterator[sender.NotificationSender]:
    permit = partial(egress_policy.check, own_ports={4646})
    async with open_notify(
        store,
        clock,
        SEAL,
        Fences(clock),
        commands=commands or {},
        permit=permit,
        random=lambda: 0.5,
        receivers=receivers or {},
        node_name="vm1",
    ) as opened:
        yield opened


async def keep(store: Store, secret: str = SECRET, path: str = "steward/notify") -> None:
    name = VariableKey("default", path)
    await change.put(
        store, SEAL, name, {"secret": secret}, expected=None, lock=VariableLock(), now=NOW
    )


async def cause(
    store: Store, webhook: str = "", command: str = "", *, job_id: str = "web", now: int = NOW
) -> None:
    notify_settings = NotifySettings(events=ALL, webhook=webhook, command=command)

    def write(tx: Transaction) -> None:
        notifications.add(
            tx,
            ("default", job_id),
            notify_settings,
            NotifyEvent.FAILURE,
            run_id=job_id,
            reason="it broke",
            now=now,
        )

    await store.write(write)


def of(store: Store, job_id: str = "web") -> list[Notification]:
    return store.read(lambda db: list(notifications.of_job(db, "default", job_id)))


async def until(store: Store, *, attempts: int, job_id: str = "web") -> Notification:
    """Wait until the only notification of a job has this many attempts; return it."""
    with trio.fail_after(HAPPENS_WITHIN):
        while True:
            with store.watch(notifications.topic("default", job_id)) as changes:
                (one,) = of(store, job_id)
                if one.attempts >= attempts:
                    return one
                await changes.wait()


async def later(store: Store, clock: Ticking, time: int) -> None:
    """Advance the time, and run the sender."""
    clock.time += time
    await store.write(lambda tx: tx.publish(notifications.TOPIC))


def is_signed(received: Received) -> bool:
    text = (
        f"{received.headers['webhook-id']}.{received.headers['webhook-timestamp']}.".encode()
        + received.body
    )
    sum_ = base64.b64encode(hmac.new(KEY, text, hashlib.sha256).digest()).decode()
    return received.headers["webhook-signature"] == f"v1,{sum_}"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("poison"), "KeyError: 'poison'"),
        (StorageUnreadable("its job cannot be read"), "its job cannot be read"),
    ],
)
async def test_message_that_cannot_be_built_counts_as_a_failed_attempt(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    clock, real = Ticking(), message.body

    def poisoned(told: str, notification: Notification, context: message.Context) -> bytes:
        if notification.job_id == "poison":
            raise error
        return real(told, notification, context)

    monkeypatch.setattr(message, "body", poisoned)
    await keep(store)
    async with at_work(store, clock):
        await cause(store, receiver.url, job_id="poison")
        failed = await until(store, attempts=1, job_id="poison")
        assert failed.status == "pending"
        assert said in failed.error
        await cause(store, receiver.url)
        assert (await until(store, attempts=1)).status == "sent"


async def test_refused_notification_is_sent_again_with_the_same_id(
    store: Store, receiver: Receiver
) -> None:
    clock = Ticking()
    await keep(store)
    receiver.answers = [500, 503]
    async with at_work(store, clock):
        await cause(store, receiver.url)
        first = await until(store, attempts=1)
        assert (first.status, first.error) == ("pending", "the receiver answered with 500")
        assert first.next_attempt - NOW == 10**9
        await later(store, clock, 10**9)
        second = await until(store, attempts=2)
        assert second.next_attempt - clock.now() == 4 * 10**9
        await later(store, clock, 4 * 10**9)
        third = await until(store, attempts=3)
    assert (third.status, third.error) == ("sent", "")
    assert {request.headers["webhook-id"] for request in receiver.received} == {
        receiver.received[0].told["id"]
    }
    assert [request.path for request in receiver.received] == ["/hook?key=secret"] * 3
    assert [is_signed(request) for request in receiver.received] == [True] * 3
    stamps = [int(request.headers["webhook-timestamp"]) for request in receiver.received]
    assert [stamp - NOW // 10**9 for stamp in stamps] == [0, 1, 5]
    assert receiver.received[0].told["data"]["reason"] == "it broke"


async def test_sent_notification_is_not_sent_again_after_a_restart(
    store: Store, receiver: Receiver
) -> None:
    await keep(store)
    await cause(store, receiver.url)
    async with at_work(store, Ticking()):
        assert (await until(store, attempts=1)).status == "sent"
    async with at_work(store, Ticking()):
        await trio.testing.wait_all_tasks_blocked()
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (
            "",
            'there is no secret to sign with: store one in the item "secret" of the variable '
            '"steward/notify/web" or "steward/notify" of the namespace "default"',
        ),
        (
            "short",
            'the item "secret" of the variable "steward/notify" must be whsec_ followed by '
            "24 to 64 random bytes in base64",
        ),
    ],
)
async def test_notification_that_cannot_be_signed_is_not_sent(
    store: Store, receiver: Receiver, secret: str, said: str
) -> None:
    if secret:
        await keep(store, secret)
    await cause(store, receiver.url)
    async with at_work(store, Ticking()):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("pending", said)
    assert receiver.received == []


async def test_secret_of_the_job_overrides_the_secret_of_the_namespace(
    store: Store, receiver: Receiver
) -> None:
    await keep(store, "whsec_" + base64.b64encode(bytes(24)).decode())
    await keep(store, path="steward/notify/web")
    await cause(store, receiver.url)
    async with at_work(store, Ticking()):
        await until(store, attempts=1)
    assert is_signed(receiver.received[0])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://169.254.169.254/x", "169.254.169.254 is the cloud's metadata service"),
        ("http://[::ffff:169.254.169.254]/x", "is the cloud's metadata service"),
        ("http://[fd00:ec2::254]/x", "is the cloud's metadata service"),
        ("http://127.0.0.1:4646/v1/jobs", "127.0.0.1:4646 is the daemon itself"),
        ("http://localhost:4646/v1/jobs", "4646 is the daemon itself"),
        ("http://0.0.0.0:9/x", "0.0.0.0 is not the address of a host"),
    ],
)
async def test_no_message_is_sent_to_an_address_of_the_egress_policy(
    store: Store, url: str, said: str
) -> None:
    await keep(store)
    await cause(store, url)
    async with at_work(store, Ticking()):
        one = await until(store, attempts=1)
    assert one.status == "pending"
    assert said in one.error


async def test_notification_does_not_follow_redirects(store: Store, receiver: Receiver) -> None:
    await keep(store)
    receiver.answers, receiver.moved_to = [307], receiver.url
    await cause(store, receiver.url)
    async with at_work(store, Ticking()):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("pending", "the receiver answered with 307")
    assert len(receiver.received) == 1


async def test_receiver_that_unsubscribed_gets_no_further_notifications(
    store: Store, receiver: Receiver
) -> None:
    await keep(store)
    receiver.answers = [410]
    await cause(store, receiver.url)
    async with at_work(store, Ticking()):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("failed", "the receiver accepts no more messages (410)")


async def test_notification_is_dropped_after_a_day(store: Store, receiver: Receiver) -> None:
    await keep(store)
    receiver.answers = [500]
    await cause(store, receiver.url, now=NOW - 25 * HOUR)
    async with at_work(store, Ticking()):
        one = await until(store, attempts=1)
    assert (one.status, one.next_attempt) == ("failed", 0)


async def test_unresponsive_receiver_delays_only_its_own_job(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ATTEMPT", 10 * HAPPENS_WITHIN)
    await keep(store)
    receiver.answers = [0]
    async with at_work(store, Ticking()):
        await cause(store, receiver.url, job_id="slow")
        await receiver.until(1)
        await cause(store, receiver.url, job_id="slow")
        for number in range(20):
            await cause(store, receiver.url, job_id=f"other-{number}")
        for number in range(20):
            assert (await until(store, attempts=1, job_id=f"other-{number}")).status == "sent"
        assert [item.attempts for item in of(store, "slow")] == [0, 0]


async def test_slow_webhook_is_retried(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ATTEMPT", 0.2)
    await keep(store)
    receiver.answers = [0]
    await cause(store, receiver.url)
    async with at_work(store, Ticking()):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("pending", "there was no result within 0 seconds")


# ---- commands ---------------------------------------------------------------------------------------


def script(tmp_path: Path, text: str) -> list[str]:
    """Return a command that runs a program of Python."""
    file = tmp_path / "told.py"
    file.write_text(f"import json, os, sys\nfolder = {str(tmp_path)!r}\n{text}")
    return [sys.executable, "-I", str(file)]


async def test_notification_command_gets_only_the_message(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEWARD_TOKEN", "secret")
    words = script(
        tmp_path,
        "told = [json.load(sys.stdin), dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid()]\n"
        "open(folder + '/told.json', 'w').write(json.dumps(told))\n",
    )
    await cause(store, command="mail")
    async with at_work(store, Ticking(), {"mail": words}):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("sent", "")
    told, environ, folder, is_apart = msgspec.json.decode((tmp_path / "told.json").read_bytes())
    assert told["type"] == "job.failure"
    assert told["data"]["job_id"] == "web"
    assert sorted(set(environ) - {"LC_CTYPE"}) == ["LANG", "PATH"]
    assert (folder, is_apart) == ("/", True)


async def test_output_of_a_command_is_only_logged(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "steward.notify")
    words = script(tmp_path, "print('no route to the mail' + 'x' * 10**6)\nsys.exit(3)\n")
    await cause(store, command="mail")
    async with at_work(store, Ticking(), {"mail": words}):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("pending", "the command mail ended with status 3")
    (line,) = [text for text in caplog.messages if "wrote" in text]
    assert line.startswith("the command mail wrote: no route to the mailxxx")
    assert len(line) < 3000


async def test_timed_out_command_is_killed_with_its_children(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ATTEMPT", 10 * HAPPENS_WITHIN)
    words = script(
        tmp_path,
        "import subprocess\n"
        "child = subprocess.Popen(['/bin/sleep', '600'])\n"
        "open(folder + '/unfinished', 'w').write(str(child.pid))\n"
        "os.rename(folder + '/unfinished', folder + '/pid')\n"
        "child.wait()\n",
    )
    await cause(store, command="mail")
    with trio.fail_after(HAPPENS_WITHIN):
        async with at_work(store, Ticking(), {"mail": words}):
            while not (tmp_path / "pid").exists():
                await trio.lowlevel.checkpoint()
        pid = (tmp_path / "pid").read_text()
        while is_asleep(pid):
            await trio.lowlevel.checkpoint()


def is_asleep(pid: str) -> bool:
    try:
        return "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


async def test_command_that_exits_without_reading_counts_as_notified(store: Store) -> None:
    await cause(store, command="mail")
    async with at_work(store, Ticking(), {"mail": ["/bin/true"]}):
        assert (await until(store, attempts=1)).status == "sent"


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ({}, "the configuration has no command mail in notify_commands"),
        ({"mail": ["/no/such"]}, "the command mail cannot be run: No such file or directory"),
    ],
)
async def test_missing_command_is_reported(
    store: Store, commands: dict[str, list[str]], said: str
) -> None:
    await cause(store, command="mail")
    async with at_work(store, Ticking(), commands):
        one = await until(store, attempts=1)
    assert (one.status, one.error) == ("pending", said)


# ---- deletion ---------------------------------------------------------------------------------------


async def test_sent_notifications_are_retained_by_number_and_pending_ones_always(
    store: Store, receiver: Receiver
) -> None:
    await keep(store)
    async with at_work(store, Ticking()):
        for _ in range(4):
            await cause(store, receiver.url)
        await receiver.until(4)
        with trio.fail_after(HAPPENS_WITHIN):
            while {item.status for item in of(store)} != {"sent"}:
                await trio.lowlevel.checkpoint()
    await cause(store, receiver.url)
    await gc.collect_once(store, NOW + MINUTE, gc.RetentionLimits(notifications=2))
    assert [item.status for item in of(store)] == ["pending", "sent"]
    await gc.collect_once(store, NOW + HOUR, gc.RetentionLimits(jobs_for=MINUTE))
    assert [item.status for item in of(store)] == ["pending"]


async def test_notification_in_flight_during_an_error_is_sent_again(
    store: Store,
) -> None:
    asked = []
    again = trio.Event()

    async def send(notification: Notification) -> Notification:
        asked.append(notification.job_id)
        if len(asked) == 1:
            raise RuntimeError
        again.set()
        await trio.sleep_forever()
        return notification

    attempts: Any = SimpleNamespace(send=send)
    notification_sender = sender.NotificationSender(store, Ticking(), {}, lambda: attempts)
    await cause(store, "http://example.test/")
    with pytest.raises(ExceptionGroup):
        await notification_sender.run()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notification_sender.run)
        with trio.fail_after(HAPPENS_WITHIN):
            await again.wait()
        nursery.cancel_scope.cancel()
    assert asked == ["web", "web"]
