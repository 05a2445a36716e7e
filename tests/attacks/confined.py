"""A daemon that is compromised after it has confined itself: it runs lines of Python.

python -m tests.attacks.confined DIRECTORY UID SANDBOX

The daemon is configured as if Git were installed, with a notification command. If `SANDBOX` is
`yes`, the launcher checks whether this host supports sandboxes. If it is `no`, the host counts as
one without sandboxes. Each input line is an expression. The response is one line: `done`, or the
name of the error.
"""

import ctypes
import errno
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

from daemon.config.settings import Settings
from daemon.confinement import bpf
from daemon.launcher.client import probe_sandbox, send_hello
from daemon.launcher.fork import begin
from daemon.launcher.messages import SandboxSupport
from daemon.process import self_confinement
from daemon.process.service_account import ServiceAccount
from daemon.runner.core.launcher_policy import policy_of

IP, PACKET = socket.AF_INET, socket.AF_PACKET


def call(name: str, *arguments: Any) -> int:
    """Execute the system call with this name; return its result. Raises `OSError`."""
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(bpf.numbers(bpf.host_architecture())[name], *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def main(directory: str, uid: str, sandbox: str) -> None:
    """Confine this process like a daemon, and evaluate the lines of standard input."""
    channel = begin()
    say = {"say": ["/bin/true"]}
    config = Settings(data_dir=Path(directory), user=uid, notify_commands=say)
    self_confinement.shutil.which = lambda name: f"/usr/bin/{name}"
    support = partial(SandboxSupport, tools="", walls="no bubblewrap", no_filter="")
    if sandbox == "yes":
        send_hello(channel, config.store_dir / "alloc", policy_of(config, int(uid), ""))
        support = partial(probe_sandbox, channel)
    programs = self_confinement.starts_programs(config, support, is_separated=True)
    account = ServiceAccount(uid, int(uid), int(uid), (int(uid),))
    self_confinement.confine(config, account, programs=programs)
    [launcher] = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = {
        **globals(),
        "launcher": int(launcher),
        "channel": channel,
        "store": str(config.store_dir),
        "beside": directory,
    }
    print("ready", flush=True)  # noqa: T201  # the test reads it
    for line in sys.stdin:
        try:
            eval(line, names)  # noqa: S307  # that is its purpose
            answer = "done"
        except OSError as error:
            answer = errno.errorcode.get(error.errno or 0, str(error))
        except Exception as error:
            answer = type(error).__name__
        print(answer, flush=True)  # noqa: T201  # the test reads it


if __name__ == "__main__":
    main(*sys.argv[1:])
