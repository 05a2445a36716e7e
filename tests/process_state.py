"""A program that prints its process state as JSON, and ends in a given way (`test_forks.py`).

python -m tests.process_state HOW
"""

import gc
import json
import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import trio


def state() -> dict[str, object]:
    """Return the state that a forked process must have in common with an executed one."""
    shown = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    main = sys.modules["__main__"]
    return {
        "arguments": [sys.argv, sys.orig_argv],
        "environment": dict(os.environ),
        "environment of a command": subprocess.check_output(["env"]).decode("latin-1"),
        "directory": [os.getcwd(), sys.path[0]],
        "descriptors": [
            item
            for item in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{item}")  # except the one of `listdir`
        ],
        "groups": ["own" if one == os.getpid() else one for one in (os.getpgid(0), os.getsid(0))],
        "signals": [shown[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "handlers": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)],
        "umask": shown["Umask"],
        "threads": [shown["Threads"], threading.active_count(), threading.current_thread().name],
        "streams": [
            (one.encoding, one.errors, one.line_buffering, one.isatty(), one.fileno(), one.mode)
            for one in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "standard streams": [
            sys.__stdin__ is sys.stdin,
            sys.__stdout__ is sys.stdout,
            sys.__stderr__ is sys.stderr,
        ],
        "module": [main.__name__, main.__spec__.name, main.__dict__["state"] is state],
        "in Trio": trio.lowlevel.in_trio_run(),
        "garbage collection": [gc.isenabled(), gc.get_threshold()],
        "databases": [type(one).__name__ for one in gc.get_objects() if _is_database(one)],
        "limits": Path("/proc/self/limits").read_text(),
        "input": sys.stdin.read(),
    }


def _is_database(item: object) -> bool:
    return type(item) is sqlite3.Connection


def random_state() -> list[str]:
    """Return a number from each source of random numbers."""
    sources = random.random, uuid.uuid4, secrets.token_hex, random.SystemRandom().random
    return [str(source()) for source in sources]


def main(how: str) -> None:
    json.dump(random_state() if how == "random" else state(), sys.stdout)
    match how:
        case "interrupted":
            os.kill(os.getpid(), signal.SIGINT)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "failed":
            raise ValueError(how)
        case "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            sys.stdout.write(how)
        case "random":
            pass
        case _:
            sys.exit(json.loads(how))


if __name__ == "__main__":
    main(sys.argv[1])
