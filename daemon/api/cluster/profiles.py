"""Profiles of the daemon, for `go tool pprof`: CPU, heap and threads.

Only one profile is recorded at a time.
"""

import re
import sys
from collections.abc import Callable
from functools import partial

import trio

from daemon.api.cluster.target import check_here
from daemon.app import profiling
from daemon.app.profiling import Profile
from daemon.web.reply import HandlerReply, text
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, TooOften

_OCTETS = "application/octet-stream"
_LONGEST = 300  # seconds
_MOST_DEBUG = 999_999_999  # Go has levels of detail; here every value except 0 means the same
_NAMES = ("profile", "heap", "goroutine")
_BUSY = trio.Lock()  # of two profiles at the same time, each would contain the other


async def command(request: Request) -> HandlerReply:
    """Show the command line with which the daemon was started."""
    check_here(request)
    return text("\0".join(sys.argv))


async def profile(request: Request) -> HandlerReply:
    """Record a profile. Raises `NotFound` for a kind of profile that Python does not have.

    A cancelled request also stops the recording thread. The lock is held until the thread has
    stopped.
    """
    name = request["profile"]
    check_here(request)
    make, debug = _maker(request, name), _flag(request, "debug")
    try:
        _BUSY.acquire_nowait()
    except trio.WouldBlock:
        raise TooOften("another profile is being recorded: retry when it is complete") from None
    try:
        recorded = await trio.to_thread.run_sync(make)
        if debug and name != "profile":
            return text(await trio.to_thread.run_sync(profiling.text, recorded))
        body = await trio.to_thread.run_sync(profiling.packed, recorded)
    finally:
        _BUSY.release()
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HandlerReply(body=body, content_type=_OCTETS, headers=headers)


def _maker(request: Request, name: str) -> Callable[[], Profile]:
    clock = request.parts.clock
    if name == "profile":
        seconds = _number(request, "seconds", 1, _LONGEST)
        return partial(profiling.cpu, seconds, clock, trio.from_thread.check_cancelled)
    if name == "heap":
        return partial(profiling.heap, clock, collects=_flag(request, "gc"))
    if name == "goroutine":
        return partial(profiling.threads, clock)
    raise NotFound(f'there is no profile "{name}": request one of {", ".join(_NAMES)}')


def _number(request: Request, name: str, least: int, most: int) -> int:
    """Return a numeric query parameter, or `least` if it is missing. Raises `Malformed`."""
    value = request.query.text(name)
    number = int(value) if re.fullmatch("[0-9]{1,9}", value) else -1
    if value and not least <= number <= most:
        raise Malformed(f'{name} = "{value}" is not a whole number from {least} to {most}')
    return number if value else least


def _flag(request: Request, name: str) -> bool:
    """Return whether a numeric query parameter is present and not 0. Raises `Malformed`."""
    return _number(request, name, 0, _MOST_DEBUG) > 0
