"""A separate host for a test: a network namespace with an address, and an external network.

The main thread enters the namespace, so everything that the test connects to or starts is in the
namespace. The bridge of a test, its rules and its settings do not affect the network of the real
host.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

HOST, OUTSIDE = "198.51.100.1", "198.51.100.2"
_NEW_NETWORK = 0x40000000  # linux/sched.h
_PROGRAMS = ("ip", "nft", "unshare", "nsenter")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def why_no_namespace() -> str:
    """Return why a test cannot have its own host; empty if it can."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if missing := [one for one in _PROGRAMS if shutil.which(one, path=path) is None]:
        return f"a program is missing: {', '.join(missing)}"
    done = subprocess.run(
        ["unshare", "--net", "nft", "list", "tables"], capture_output=True, check=False
    )
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


class World:
    """The namespaces of the host and of the external network, each kept by a sleeping process."""

    def __init__(self, host: int, outside: int, original: int) -> None:
        self.host, self.outside, self._original = host, outside, original

    def words(self, *command: str) -> list[str]:
        """Return the words that run a command in the external network."""
        return inside(self.outside, *command)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the external network until the command ends."""
        return subprocess.run(
            self.words(*command), capture_output=True, text=True, check=False, timeout=30
        )

    @contextmanager
    def left(self) -> Iterator[None]:
        """Return to the original network during the block.

        A thread that started in the namespace would stay there, and outlive the test.
        """
        _call("setns", self._original, _NEW_NETWORK)
        try:
            yield
        finally:
            self.enter()

    def enter(self) -> None:
        """Move this thread into the network of the host."""
        found = os.open(f"/proc/{self.host}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", found, _NEW_NETWORK)
        finally:
            os.close(found)


def inside(pid: int, *command: str) -> list[str]:
    """Return the words that run a command in the network of a process."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *command]


@contextmanager
def own_host() -> Iterator[World]:
    """Give the main thread a separate network while the block runs."""
    with ExitStack() as held:
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        held.callback(os.close, own)
        host, outside = (held.enter_context(namespace()) for _ in range(2))
        world = World(host, outside, own)
        held.callback(_call, "setns", own, _NEW_NETWORK)
        world.enter()
        _FORWARDING.write_text("0")  # a new network inherits the setting of the real host
        for line in (
            "link set lo up",
            f"link add up0 type veth peer name up1 netns {outside}",
            f"addr add {HOST}/24 dev up0",
            "link set up0 up",
            f"route add default via {OUTSIDE}",
        ):
            subprocess.run(["ip", *line.split()], check=True)
        for line in ("link set lo up", f"addr add {OUTSIDE}/24 dev up1", "link set up1 up"):
            subprocess.run(world.words("ip", *line.split()), check=True)
        yield world


@contextmanager
def namespace() -> Iterator[int]:
    """Yield the ID of a process that keeps a new namespace alive."""
    before = os.readlink("/proc/thread-self/ns/net")
    sleeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        while os.readlink(f"/proc/{sleeper.pid}/ns/net") == before:
            os.sched_yield()
        yield sleeper.pid
    finally:
        sleeper.kill()
        sleeper.wait()


def interfaces(prefix: str) -> Sequence[str]:
    """Return the interfaces of the host whose names begin with `prefix`."""
    done = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    names = [line.split()[1].rstrip(":").partition("@")[0] for line in done.stdout.splitlines()]
    return [one for one in names if one.startswith(prefix)]


def elements(table: str = "steward-steward") -> str:
    """Return the elements of the map of ports, as nft prints them."""
    words = ["nft", "list", "map", "ip", table, "ports"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.partition("elements = {")[2]


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
