"""How a shim is started: with its four descriptors, in a session of its own, with no signal ignored."""

import os
import signal

import msgspec

from daemon.launcher.channel import Wrong, read_sealed
from daemon.launcher.messages import MOST_PAYLOAD, Payload

_NULL = "/dev/null"
_PLACES = (
    2,
    1,
    3,
    4,
)  # of a shim: the claim, standard output, standard error of the task, its filter
# The interpreter ignores some, and whoever started the daemon may have: tasks get them as they are.
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_decode = msgspec.msgpack.Decoder(Payload).decode


def start(payload: int, *passed: int) -> tuple[int, int]:
    """Start a shim; return its pid and pidfd. Raises `OSError`, `ValueError` or `Wrong`."""
    try:
        given = _decode(read_sealed(payload, MOST_PAYLOAD))
    except msgspec.DecodeError as error:
        raise Wrong(f"Payload: {error}") from None
    pid = os.posix_spawn(
        given.words[0],
        given.words,
        given.env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, _NULL, os.O_RDONLY, 0),
            *(
                (os.POSIX_SPAWN_DUP2, one, place)
                for one, place in zip(passed, _PLACES, strict=False)
            ),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_SIGNALS,
    )
    return pid, os.pidfd_open(pid)
