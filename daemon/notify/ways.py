"""The two ways of telling: a request to an address, and a command of the operator's.

An address comes from whoever may submit a job. So what no artifact may be fetched from gets no
message either, it is looked up once and refused before anything connects, and nothing follows
where an answer leads. A command is never theirs: they choose, by its name, among those that the
operator has written into the configuration, and say nothing of what stands on its line.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from daemon.reach import Forbidden
from daemon.runner import http
from daemon.runner.http import HTTPFailed, Permit

log = logging.getLogger("steward.notify")

_GOOD = range(200, 300)
_GONE = 410
_SHOWN = 2000  # characters that the log tells of what a command wrote
_ENDS_WITHIN = 1.0  # seconds, when it has been killed, or has left somebody behind
_KEPT = 16 * 1024  # bytes of it that are read at all
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotTold(Exception):
    """It did not arrive; `final` when no other attempt will do better."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


async def post(url: str, headers: Mapping[str, str], body: bytes, permit: Permit) -> None:
    """Send a message to an address. Raises `NotTold`."""
    sent = [*headers.items(), ("content-type", "application/json")]
    try:
        async with http.ask(url, method="POST", headers=sent, body=body, permit=permit) as answer:
            status = answer.status
    except (HTTPFailed, Forbidden) as error:
        raise NotTold(str(error)) from error
    if status not in _GOOD:
        gone = status == _GONE
        said = "it wants no more (410)" if gone else f"it was answered with {status}"
        raise NotTold(said, final=gone)


async def run(name: str, words: Sequence[str], body: bytes) -> None:
    """Run a command with the message on its standard input. Raises `NotTold`.

    It gets nothing of the daemon's environment, a process group of its own, which does not outlive
    the attempt, and no other open files. What it writes is for the log alone.
    """
    try:
        process = await trio.lowlevel.open_process(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise NotTold(f"the command {name} cannot be run: {error.strerror}") from error
    try:
        written = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_talk, process, body, written)
            status = await process.wait()
            # Whoever it leaves behind may hold its output for ever.
            nursery.cancel_scope.deadline = trio.current_time() + _ENDS_WITHIN
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(
            _ENDS_WITHIN, shield=True
        ):  # but for one that is another user's by now
            await process.wait()  # it has been killed
        with trio.CancelScope(shield=True):
            await _close(process)
    text = written.decode(errors="replace").strip()[:_SHOWN]
    if text:
        log.info("the command %s wrote: %s", name, text)
    if status:
        raise NotTold(f"the command {name} ended with status {status}")


async def _talk(process: trio.Process, body: bytes, written: bytearray) -> None:
    """Hand over the message, and gather the beginning of what comes back; the rest is thrown away."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed, process, body)
        assert process.stdout is not None  # noqa: S101  # it was asked for
        async for piece in process.stdout:
            written += piece[: max(_KEPT - len(written), 0)]


async def _feed(process: trio.Process, body: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # it was asked for
    with suppress(trio.BrokenResourceError):  # it may end without having read
        await process.stdin.send_all(body)
    await process.stdin.aclose()


async def _close(process: trio.Process) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            await stream.aclose()
