"""How a shim is started: under its claim, in a session of its own, with no signal ignored."""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from daemon.launcher.channel import read_record
from daemon.launcher.messages import MOST_PAYLOAD, Payload, Start
from daemon.launcher.places import LOGS, SHARED, below, drop_claim, open_log, take_claim

_NULL = "/dev/null"
_OUT, _CLAIM, _ERR, _FILTER = 1, 2, 3, 4  # descriptors of a shim
# The interpreter ignores some, and whoever started the daemon may have: tasks get them as they are.
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_payload = msgspec.msgpack.Decoder(Payload)


def start(
    directory: str, request: Start, payload: int, filtered: Sequence[int]
) -> tuple[int, int] | None:
    """Start the shim of an attempt; return its pid and pidfd, None when the attempt has begun.

    Raises `OSError`, `ValueError` or `Wrong`.
    """
    given = read_record(payload, MOST_PAYLOAD, _payload)
    with below(directory, request.allocation) as folder, ExitStack() as held:
        claim = take_claim(folder, request.task, request.attempt)
        if claim is None:
            return None
        held.callback(os.close, claim)
        outputs = []
        for kind in ("stdout", "stderr"):
            outputs.append(_output(folder, f"{request.task}.{kind}.0", is_kept=request.is_logged))
            held.callback(os.close, outputs[-1])
        os.ftruncate(claim, 0)
        os.write(claim, f"group {request.group}\n".encode())
        places = zip((_OUT, _ERR, _CLAIM, _FILTER), (*outputs, claim, *filtered), strict=False)
        pid = _spawn(given, [(os.POSIX_SPAWN_DUP2, one, place) for place, one in places])
        found = pid, os.pidfd_open(pid)
        if request.attempt:
            drop_claim(folder, request.task, request.attempt - 1)
        return found


def _output(folder: int, name: str, *, is_kept: bool) -> int:
    if not is_kept:
        return os.open(_NULL, os.O_WRONLY)
    with below(folder, SHARED, LOGS) as logs:
        return open_log(logs, name)


def _spawn(given: Payload, actions: Sequence[tuple[object, ...]]) -> int:
    return os.posix_spawn(
        given.words[0],
        given.words,
        given.env,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, _NULL, os.O_RDONLY, 0), *actions],
        setsid=True,
        setsigmask=(),
        setsigdef=_SIGNALS,
    )
