"""A program that writes to a store whose disk fails.

    python -m tests.parts.storage.faults DIRECTORY CALL ERRNO TIMES [on]

The system call CALL fails with ERRNO for the first TIMES times. With `on`, the program writes again
afterwards. It prints the outcomes, and then kills itself like a crash.
"""

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

import trio

from storage.errors import StorageError, leaf_errors
from storage.store import open_store
from tests.parts.storage.test_writer import add, names
from tests.samples import NOW


def say(*words: str) -> None:
    os.write(1, f"{' '.join(words)}\n".encode())


async def main(directory: Path, call: str, number: int, times: int) -> None:
    faulty = ctypes.CDLL(None).faulty
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        await store.write(add("before"))
        faulty(call.encode(), number, times)
        try:
            await store.write(add("failed"))
        except StorageError as error:
            say(type(error).__name__, str(error))
        faulty(b"", 0, 0)
        if sys.argv[5:] == ["on"]:
            await store.write(add("after"))
        say(*sorted(names(store)))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    logging.getLogger("steward").addHandler(logging.NullHandler())  # the output has only results
    try:
        trio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    except* StorageError as group:
        say("ended:", *(str(error) for error in leaf_errors(group)))
