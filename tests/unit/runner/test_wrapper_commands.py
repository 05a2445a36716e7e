"""The numbers of the commands to a wrapper, and its acknowledgements."""

import pytest
import trio
import trio.testing

from daemon.runner.core.notifier import Notifier
from daemon.runner.drivers.slurm.wrapper_commands import WrapperCommandQueue


class Clock:
    """A clock that stands at two milliseconds."""

    def now(self) -> int:
        return 2_000_000


def queue() -> WrapperCommandQueue:
    return WrapperCommandQueue(Notifier(), Clock())


async def test_command_is_acknowledged_with_its_own_or_a_later_number() -> None:
    commands = queue()
    first, second = commands.fetch_files(), commands.fetch_files()
    assert (first.number, second.number) == (3, 4)
    assert await commands.after(0, lambda: True) == "3 files\n4 files\n"
    assert not commands.is_acknowledged(first)
    assert await commands.after(3, lambda: True) == "4 files\n"
    assert (commands.is_acknowledged(first), commands.is_acknowledged(second)) == (True, False)
    assert await commands.after(4, lambda: False) == ""
    assert commands.is_acknowledged(second)


async def test_first_request_of_a_wrapper_determines_the_numbers() -> None:
    commands = queue()
    commands.stop("SIGINT", 2)
    commands.signal("SIGHUP")
    assert await commands.after(9, lambda: True) == "10 stop INT 2\n11 signal HUP\n"
    assert commands.fetch_files().number == 12


@pytest.mark.parametrize(
    ("signal", "may_have_ended"), [("SIGHUP", False), ("SIGTERM", True), ("SIGKILL", True)]
)
def test_some_commands_may_end_the_task(signal: str, may_have_ended: bool) -> None:
    commands = queue()
    commands.signal(signal)
    assert commands.may_have_ended_it == may_have_ended
    commands.stop("SIGHUP", 1)
    assert commands.may_have_ended_it


async def test_waiting_request_ends_with_a_command_or_with_the_daemon() -> None:
    commands, answers = queue(), list[str]()

    async def ask() -> None:
        answers.append(await commands.after(0, lambda: True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert (commands.is_waiting, answers) == (True, [])
        commands.signal("SIGHUP")
    assert (commands.is_waiting, answers) == (False, ["3 signal HUP\n"])
    commands.close()
    assert await commands.after(3, lambda: True) == ""
