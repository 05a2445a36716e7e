"""Notification commands of a daemon that executes nothing: its launcher runs them."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.notify.channels import DeliveryFailed
from daemon.process.notify_commands import run_by_launcher
from tests import launchers
from tests.parts.runner.world import until_gone
from tests.time_limits import HAPPENS_WITHIN

BODY = b'{"type":"job.failure"}'
COMMANDS = {
    "keep": 'cat >"$0"; echo kept',
    "fail": 'echo "no route"; echo "to the mail" >&2; exit 3',
    "long": "head -c 1000000 /dev/zero | tr '\\0' x",
    "deaf": "exit 0",
    "leave": 'sleep 600 & echo $! >"$0"',
    "hang": 'echo $$ >"$0"; sleep 600',
}


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[Launcher]:
    commands = {
        name: ["/bin/sh", "-c", text, str(tmp_path / name)] for name, text in COMMANDS.items()
    }
    commands["absent"] = ["/no/such"]
    policy = msgspec.structs.replace(launchers.EVERYTHING, commands=commands)
    async with launchers.open_launcher(tmp_path / "tasks/alloc", policy) as opened:
        yield opened


async def run(launcher: Launcher, name: str, body: bytes = BODY) -> str:
    with trio.fail_after(HAPPENS_WITHIN):
        return await run_by_launcher(launcher, name, (), body)


async def test_a_command_gets_the_message(launcher: Launcher, tmp_path: Path) -> None:
    assert await run(launcher, "keep") == "status 0"
    assert (tmp_path / "keep").read_bytes() == BODY


async def test_long_unread_message_does_not_block(launcher: Launcher) -> None:
    assert await run(launcher, "deaf", bytes(1_000_000)) == "status 0"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail", "the command fail ended with status 3"),
        ("absent", "the command absent ended with status 127"),
        ("other", "the command other cannot be run: 'other' was not in notify_commands"),
    ],
)
async def test_failure_is_reported(launcher: Launcher, name: str, words: str) -> None:
    with pytest.raises(DeliveryFailed, match=words):
        await run(launcher, name)


async def test_output_is_logged_up_to_a_limit(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "steward.notify")
    with pytest.raises(DeliveryFailed):
        await run(launcher, "fail")
    await run(launcher, "long")
    failed, long = [text for text in caplog.messages if "wrote" in text]
    assert "no route" in failed
    assert "to the mail" in failed
    assert 1000 < len(long) < 3000


async def test_remaining_children_end_with_the_command(launcher: Launcher, tmp_path: Path) -> None:
    assert await run(launcher, "leave") == "status 0"
    await until_gone(int((tmp_path / "leave").read_text()))


async def test_a_cancelled_command_ends(launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "hang"
    with trio.fail_after(HAPPENS_WITHIN):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, launcher, "hang")
            while not (file.exists() and file.read_text()):  # noqa: ASYNC110  # nobody rings
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    await until_gone(int(file.read_text()))
