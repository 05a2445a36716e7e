"""The two channels of jobs: webhooks and configured commands.

The author of a job chooses the webhook URL. The egress rules of artifacts therefore also apply to
webhooks. The name is resolved once and checked before the connection, and redirects are not
followed. Commands belong to the operator. A job selects one by name from the configuration and
cannot change its arguments.
"""

import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import trio

from daemon.net import http_client
from daemon.net.egress_policy import EgressDenied
from daemon.net.http_client import HttpError, Permit

log = logging.getLogger("steward.notify")

_GOOD = range(200, 300)
_GONE = 410
_READS_FOR = 2.0  # seconds
_ANSWER = 300  # bytes of a response that are read
_SHOWN = 2000  # characters of a command's output in the log
_ENDS_WITHIN = 1.0  # seconds to wait after a kill, or for output of left-over children
KEPT = 16 * 1024  # bytes of the output that are read
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# Runs a command by its name with its words and its input; returns its exit status as text, and
# raises `DeliveryFailed`.
RunCommand = Callable[[str, Sequence[str], bytes], Awaitable[str]]


class DeliveryFailed(Exception):
    """A message was not delivered. `final` is true if a retry cannot succeed.

    `answer` is the receiver's response.
    """

    def __init__(self, reason: str, *, final: bool = False, answer: str = "") -> None:
        super().__init__(reason)
        self.final, self.answer = final, answer


async def send_webhook(url: str, headers: Mapping[str, str], body: bytes, permit: Permit) -> str:
    """Send a message to a webhook; return the response as text. Raises `DeliveryFailed`."""
    sent = [*headers.items(), ("content-type", "application/json")]
    status, detail = 0, ""
    try:
        async with http_client.send_request(
            url, method="POST", headers=sent, body=body, permit=permit
        ) as answer:
            status = answer.status
            with trio.move_on_after(_READS_FOR):
                detail = await _begin_of(answer.body)
    except (HttpError, EgressDenied) as error:
        if not status:  # otherwise the status is sufficient
            raise DeliveryFailed(str(error)) from error
    if status not in _GOOD:
        is_gone = status == _GONE
        reason = (
            "the receiver accepts no more messages (410)"
            if is_gone
            else f"the receiver answered with {status}"
        )
        raise DeliveryFailed(reason, final=is_gone, answer=detail)
    return f"{status} {detail}".rstrip()


async def _begin_of(body: AsyncIterator[bytes]) -> str:
    """Return the beginning of a response as one line, without reading the whole body."""
    from daemon.notify.words import line  # imported late, with the first message

    text = bytearray()
    async for chunk in body:
        text += chunk
        if len(text) >= _ANSWER:
            break
    return line(text[:_ANSWER].decode(errors="replace"))


async def run_command(name: str, words: Sequence[str], body: bytes) -> str:
    """Run a command with the message on standard input; return its exit status as text.

    Raises `DeliveryFailed`. The command inherits neither the daemon's environment nor its open
    files. The command's process group is killed at the end of the attempt. Its output goes only to
    the log.
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
        raise DeliveryFailed(f"the command {name} cannot be run: {error.strerror}") from error
    try:
        written = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_exchange, process, body, written)
            status = await process.wait()
            # Left-over children may keep the output open indefinitely.
            nursery.cancel_scope.deadline = trio.current_time() + _ENDS_WITHIN
    finally:
        with suppress(ProcessLookupError, PermissionError):  # ended, or of another user
            os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(
            _ENDS_WITHIN, shield=True
        ):  # except a process that belongs to another user by now
            await process.wait()  # killed above
        with trio.CancelScope(shield=True):
            await _close(process)
    return outcome(name, written, status)


def outcome(name: str, written: bytes | bytearray, status: int) -> str:
    """Log the output of an ended command; return its exit status as text.

    Raises `DeliveryFailed` if the exit status is not 0.
    """
    text = written.decode(errors="replace").strip()[:_SHOWN]
    if text:
        log.info("the command %s wrote: %s", name, text)
    if status:
        raise DeliveryFailed(f"the command {name} ended with status {status}")
    return "status 0"


async def _exchange(process: trio.Process, body: bytes, written: bytearray) -> None:
    """Write the message, and read the beginning of the output. Further output is discarded."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed, process, body)
        assert process.stdout is not None  # noqa: S101  # created with a pipe
        async for chunk in process.stdout:
            written += chunk[: max(KEPT - len(written), 0)]


async def _feed(process: trio.Process, body: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # created with a pipe
    with suppress(trio.BrokenResourceError):  # the command may exit without reading
        await process.stdin.send_all(body)
    await process.stdin.aclose()


async def _close(process: trio.Process) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            await stream.aclose()
