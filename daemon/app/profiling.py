"""Profiles of this daemon for `go tool pprof`: its CPU time, and the objects that it holds.

The profiles cover Python code: CPU time by thread and line, number and size of objects by type, and
the stacks of threads.
"""

import gc
import gzip
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import FrameType
from typing import TypeVar

import msgspec

from daemon.clock import Clock
from storage import garbage

INTERVAL = 0.001  # seconds between samples; a shorter call may not appear in a profile
_SWITCH = 1e-5  # seconds until the interpreter switches threads, while a profile runs
_YOUNG = (0, 1)  # generations of objects; all other objects are frozen (`storage/garbage.py`)
_NANOSECONDS = 1_000_000_000

T = TypeVar("T", bound=Hashable)


class ProfileLine(msgspec.Struct, frozen=True):
    """A line of a function, or the name of an object type."""

    function: str
    file: str = ""
    line: int = 0


Stack = tuple[ProfileLine, ...]  # the innermost first
Samples = Mapping[Stack, tuple[int, ...]]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a profile: for each stack, one value of each kind."""

    kinds: tuple[tuple[str, str], ...]  # the counted values and their units
    samples: Samples
    began: int = 0  # nanoseconds since the epoch
    duration: int = 0


# --- samples ------------------------------------------------------------------------------------------


def cpu(seconds: float, clock: Clock, check: Callable[[], None] = lambda: None) -> Profile:
    """Sample all other threads for `seconds`. Blocks.

    During the profile, the interpreter switches threads more often. Otherwise the samples would show
    threads where they release the interpreter, not where they use CPU time. `check` runs before each
    sample, and cancels the profile if it raises. The interpreter has one switch interval, so only one
    profile can run at a time.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        return _watched(seconds, clock, check)
    finally:
        sys.setswitchinterval(usual)


def _watched(seconds: float, clock: Clock, check: Callable[[], None]) -> Profile:
    began, own = clock.now(), threading.get_ident()
    until = time.monotonic() + seconds
    looks, spent = Counter[Stack](), Counter[Stack]()
    before = _cpu_times()
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(INTERVAL, left))
        after = _cpu_times()
        frames = sys._current_frames()  # noqa: SLF001  # the library's interface for this
        for thread, used in after.items():
            took = used - before.get(thread, used)
            if thread != own and took > 0 and thread in frames:
                stack = _stack(frames[thread])
                looks[stack] += 1
                spent[stack] += took
        before = after
    return Profile(
        kinds=(("samples", "count"), ("cpu", "nanoseconds")),
        samples={stack: (looks[stack], spent[stack]) for stack in looks},
        began=began,
        duration=int(seconds * _NANOSECONDS),
    )


def _cpu_times() -> dict[int, int]:
    """Return the CPU time of each thread, in nanoseconds."""
    times_by_thread = {}
    for thread in threading.enumerate():
        if thread.ident is not None:
            try:
                clock = time.pthread_getcpuclockid(thread.ident)
                times_by_thread[thread.ident] = time.clock_gettime_ns(clock)
            except OSError:  # the thread has ended
                continue
    return times_by_thread


def heap(clock: Clock, *, collects: bool = False) -> Profile:
    """Count the objects that the garbage collector tracks, by type. Blocks.

    Listing the objects stops all threads: 4 ms for 100,000 objects. Other threads run during the
    count itself. No object changes its generation during the count. `collects` frees garbage among
    the newest objects only, because a full collection stops all threads for longer.
    """
    if collects:
        garbage.collect_newest()
    number, size = Counter[Stack](), Counter[Stack]()

    def count(objects: list[object]) -> None:
        while objects:  # freeing a long list in one step would also stop all threads
            block = objects.pop()
            kind = type(block)
            stack = (ProfileLine(f"{kind.__module__}.{kind.__qualname__}"),)
            number[stack] += 1
            size[stack] += sys.getsizeof(block, 0)

    with garbage.paused():
        for generation in _YOUNG:
            count(gc.get_objects(generation=generation))
        count(garbage.frozen_objects())
    return Profile(
        kinds=(("inuse_objects", "count"), ("inuse_space", "bytes")),
        samples={stack: (number[stack], size[stack]) for stack in number},
        began=clock.now(),
    )


def threads(clock: Clock) -> Profile:
    """Return the stack of each thread."""
    # The only way to the stacks of other threads; the documentation of `sys` describes it.
    seen = Counter(_stack(frame) for frame in sys._current_frames().values())  # noqa: SLF001
    samples = {stack: (number,) for stack, number in seen.items()}
    return Profile(kinds=(("goroutine", "count"),), samples=samples, began=clock.now())


def _stack(frame: FrameType | None) -> Stack:
    lines = []
    while frame is not None:
        code = frame.f_code
        name = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
        lines.append(ProfileLine(name, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(lines)


# --- formats ------------------------------------------------------------------------------------------


def text(profile: Profile) -> str:
    """Format a profile as text: one line per stack, the largest value first."""
    title = " ".join(f"{kind}/{unit}" for kind, unit in profile.kinds)
    lines = [title]
    for stack, values in sorted(profile.samples.items(), key=lambda sample: sample[1][::-1])[::-1]:
        frames = " < ".join(
            f"{frame.function}:{frame.line}" if frame.line else frame.function for frame in stack
        )
        lines.append(f"{' '.join(map(str, values))} {frames}")
    return "\n".join(lines) + "\n"


class _Numbers(dict[T, int]):
    """Indexes of values in the order of their first use, from 0."""

    def of(self, value: T) -> int:
        """Return the index of a value; a new value gets the next index."""
        return self.setdefault(value, len(self))


def packed(profile: Profile) -> bytes:
    """Return a profile in the format of pprof: a compressed message of its `profile.proto`."""
    words, frames, functions = _Numbers[str](), _Numbers[ProfileLine](), _Numbers[tuple[str, str]]()
    words.of("")  # in this format, the first string must be empty
    out = bytearray()
    for kind in profile.kinds:
        out += _message(1, _kind(words, kind))
    for stack, values in profile.samples.items():
        ids = [frames.of(frame) + 1 for frame in stack]
        out += _message(2, _list(1, ids) + _list(2, values))
    for frame, index in frames.items():
        line = _number(1, functions.of((frame.function, frame.file)) + 1) + _number(2, frame.line)
        out += _message(4, _number(1, index + 1) + _message(4, line))
    for (name, file), index in functions.items():
        named = _number(2, words.of(name)) + _number(3, words.of(name))
        out += _message(5, _number(1, index + 1) + named + _number(4, words.of(file)))
    if profile.duration:
        out += _message(11, _kind(words, profile.kinds[-1]))
        out += _number(12, int(INTERVAL * _NANOSECONDS))
    out += _number(9, profile.began) + _number(10, profile.duration)
    for word in words:
        out += _message(6, word.encode())
    return gzip.compress(bytes(out))


def _kind(words: _Numbers[str], kind: tuple[str, str]) -> bytes:
    name, unit = kind
    return _number(1, words.of(name)) + _number(2, words.of(unit))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, inner: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(inner)) + inner


def _list(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))
