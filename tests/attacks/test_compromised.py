"""A daemon that was taken over speaks to its launcher as it likes: each message is tried.

A message without a line in `SAMPLES` fails the first test, so none comes without being attacked.
"""

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from daemon.launcher import messages
from daemon.launcher.channel import sealed
from daemon.launcher.messages import (
    VERSION,
    Finish,
    Hello,
    LayOut,
    Layout,
    Note,
    Read,
    Recall,
    Room,
    Signal,
    Start,
    Started,
    Write,
)
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, greeted, payload, place, talk
from tests.parts.runner.conftest import needs_root

__all__ = ["greeted", "place", "talk"]

LAYOUT = Layout(rooms=[Room(task="main", owner=None, is_seen=True)], about=b"{}")
# A valid message of each kind, and what makes the descriptors that come with it.
SAMPLES: dict[type, tuple[Callable[[Path], Any], Callable[[], tuple[int, ...]]]] = {
    Hello: (lambda directory: Hello(version=VERSION, directory=str(directory)), lambda: ()),
    Start: (
        lambda _: Start(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True),
        lambda: (payload("/bin/echo", "ran"),),
    ),
    Signal: (
        lambda _: Signal(
            allocation=ALLOCATION,
            task="main",
            attempt=0,
            signal="SIGKILL",
            is_walled=False,
            to_shim=False,
        ),
        lambda: (),
    ),
    Finish: (lambda _: Finish(allocation=ALLOCATION, task="main", attempt=0), lambda: ()),
    Write: (
        lambda _: Write(
            allocation=ALLOCATION,
            task="main",
            path="main/local/f",
            mode=0o644,
            is_new=False,
            owner=None,
        ),
        lambda: (sealed(b"text"),),
    ),
    Read: (
        lambda _: Read(allocation=ALLOCATION, task="main", path="main/local/f", most=9),
        lambda: (),
    ),
    Note: (
        lambda _: Note(allocation=ALLOCATION, task="main", kind="token", text="x"),
        lambda: (),
    ),
    Recall: (lambda _: Recall(allocation=ALLOCATION, task="main", kind="token"), lambda: ()),
    LayOut: (
        lambda _: LayOut(allocation=ALLOCATION, previous=None),
        lambda: (sealed(msgspec.msgpack.encode(LAYOUT)),),
    ),
}
NAMES = ("", ".", "..", "../..", "/", "/etc", "a/../../b", "a\0b", "x" * 300, "..\n")
MESSAGES = sorted(SAMPLES, key=lambda one: one.__name__)


def fields_of(kind: type) -> list[str]:
    return [one.name for one in msgspec.structs.fields(kind)]


def named(kind: type) -> Iterator[str]:
    """Yield the fields of a message that are parts of a path."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields_of(kind):
        if {messages.Id, messages.Name} & {hints[one], *get_args(hints[one])}:
            yield one


def wire(message: Any, **changed: Any) -> list[Any]:
    """Return a message as it travels, with some fields changed."""
    given = msgspec.structs.asdict(message) | changed
    return [message.__struct_config__.tag, *given.values()]


def tree(directory: Path) -> list[str]:
    return sorted(str(one) for one in directory.rglob("*"))


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the one that the launcher serves; nothing may happen in it."""
    found = tmp_path.parent / f"{tmp_path.name}-outside"
    found.mkdir()
    (found / "victim").write_text("root's\n")
    before = os.listdir(tmp_path.parent)
    yield found
    assert os.listdir(tmp_path.parent) == before
    assert tree(found) == [str(found / "victim")]
    assert (found / "victim").read_text() == "root's\n"


def test_every_message_is_attacked() -> None:
    assert isinstance(messages.Request, types.UnionType)
    assert set(SAMPLES) == set(messages.Request.__args__)


@pytest.mark.parametrize("kind", [one for one in MESSAGES if one is not Hello])
@pytest.mark.usefixtures("place", "outside")
def test_nothing_is_done_before_the_greeting(talk: Talk, kind: type, tmp_path: Path) -> None:
    make, bring = SAMPLES[kind]
    descriptors = bring()
    before = tree(tmp_path)
    talk.send(1, len(descriptors), make(tmp_path), descriptors=descriptors)
    assert talk.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("place", "outside")
def test_no_second_greeting_names_another_directory(greeted: Talk, tmp_path: Path) -> None:
    greeted.send(2, 0, Hello(version=VERSION, directory=str(tmp_path.parent)))
    assert greeted.has_ended()


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in MESSAGES for field in fields_of(kind)]
)
@pytest.mark.usefixtures("place", "outside")
def test_field_of_another_type_ends_the_launcher(
    talk: Talk, kind: type, field: str, tmp_path: Path
) -> None:
    make, bring = SAMPLES[kind]
    if kind is not Hello:
        talk.greet(tmp_path)
    descriptors, sample = bring(), make(tmp_path)
    wrong: Any = 5 if isinstance(getattr(sample, field), dict) else {}
    before = tree(tmp_path)
    talk.send(2, len(descriptors), wire(sample, **{field: wrong}), descriptors=descriptors)
    assert talk.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in MESSAGES for field in named(kind)]
)
@pytest.mark.usefixtures("place", "outside")
def test_name_that_leads_out_is_refused(
    greeted: Talk, kind: type, field: str, name: str, tmp_path: Path
) -> None:
    make, bring = SAMPLES[kind]
    descriptors, sample = bring(), make(tmp_path)
    before = tree(tmp_path)
    greeted.send(2, len(descriptors), wire(sample, **{field: name}), descriptors=descriptors)
    assert greeted.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.usefixtures("place", "outside")
def test_descriptors_that_do_not_come_end_the_launcher(
    talk: Talk, kind: type, tmp_path: Path
) -> None:
    make, bring = SAMPLES[kind]
    if kind is not Hello:
        talk.greet(tmp_path)
    descriptors = bring()
    before = tree(tmp_path)
    talk.send(2, len(descriptors) + 1, make(tmp_path), descriptors=descriptors)
    assert talk.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("kind", [one for one in MESSAGES if [*named(one)]])
def test_allocation_that_is_a_link_is_not_entered(
    greeted: Talk, kind: type, outside: Path, tmp_path: Path
) -> None:
    (outside / "alloc/logs").mkdir(parents=True)
    (tmp_path / ALLOCATION).symlink_to(outside)
    make, bring = SAMPLES[kind]
    before = tree(outside)
    greeted.ask(make(tmp_path), *bring())
    assert tree(outside) == before
    (outside / "alloc/logs").rmdir()
    (outside / "alloc").rmdir()


ASSAULT = """\
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
def tell(action):
    try:
        action()
        print("done")
    except OSError as error:
        print(type(error).__name__)
def trace():
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise PermissionError(ctypes.get_errno())
tell(lambda: os.kill(pid, signal.SIGTERM))
tell(trace)
tell(lambda: open(f"/proc/{pid}/mem", "rb"))
tell(lambda: os.listdir(f"/proc/{pid}/fd"))
tell(lambda: open(f"/proc/{pid}/environ", "rb"))
"""


@needs_root
def test_a_daemon_without_rights_has_no_hold_on_its_launcher(greeted: Talk, place: Place) -> None:
    sample = SAMPLES[Start][0](place.root)
    answer = greeted.ask(sample, payload("/bin/sleep", "600")).body
    assert isinstance(answer, Started)
    try:
        status = Path(f"/proc/{answer.pid}/status").read_text()
        (launcher,) = (line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
        done = subprocess.run(
            [sys.executable, "-c", ASSAULT, launcher], capture_output=True, text=True, check=True
        )
    finally:
        os.kill(answer.pid, signal.SIGKILL)
    assert done.stdout.split() == ["PermissionError"] * 5
