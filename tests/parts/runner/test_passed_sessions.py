"""Sessions that the launcher passes to the daemon: their exit status and their descriptors."""

import os
from typing import cast

import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.runner.drivers.local_exec import PassedSession


class SessionLauncher:
    """A launcher with one session, which ends when it is killed."""

    def __init__(self, status: int) -> None:
        self.status, self.kills = status, 0
        self.descriptor, self._end = os.pipe()

    async def end_session(self, session: int, *, hang_up: bool = False) -> None:
        self.kills += 1
        os.close(self._end)  # makes the descriptor readable

    async def conclude(self, session: int) -> int:
        return self.status


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (3, 3), (-1, 137)])
async def test_end_of_a_session_closes_all_its_descriptors(status: int, expected: int) -> None:
    launcher = SessionLauncher(status)
    pipes = [os.pipe() for _ in range(3)]
    ends = (pipes[0][1], pipes[1][0], pipes[2][0])
    session = PassedSession(cast(Launcher, launcher), 7, launcher.descriptor, *ends)
    assert session.outputs == ["stdout", "stderr"]
    await session.write(b"in")
    assert os.read(pipes[0][0], 10) == b"in"
    os.write(pipes[2][1], b"fault")
    assert await session.read("stderr") == b"fault"
    await session.end_input()
    assert os.read(pipes[0][0], 10) == b""
    await session.close()
    assert launcher.kills == 1
    assert await session.wait() == expected
    await session.kill()  # has no effect after the end
    assert launcher.kills == 1
    for descriptor in (launcher.descriptor, *ends):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    for other in (pipes[0][0], pipes[1][1], pipes[2][1]):
        os.close(other)


async def test_output_ends_when_no_process_has_it_open() -> None:
    launcher = SessionLauncher(0)
    pipes = [os.pipe() for _ in range(3)]
    ends = (pipes[0][1], pipes[1][0], pipes[2][0])
    session = PassedSession(cast(Launcher, launcher), 7, launcher.descriptor, *ends)
    for other in (pipes[0][0], pipes[1][1], pipes[2][1]):
        os.close(other)
    assert await session.read("stdout") == b""
    await session.write(b"x")  # is ignored
    with trio.fail_after(5):
        await session.close()
