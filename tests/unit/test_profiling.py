"""Profiles in the format of `pprof`, parsed by a protocol buffer reader in the tests."""

import gc
import gzip
import sys
import threading
from collections.abc import Iterator

import pytest

from daemon.app import profiling
from daemon.app.profiling import Profile, ProfileLine
from storage import garbage
from storage.loop_share import SWITCH_INTERVAL
from tests.samples import NOW


class Stopped:
    """A clock that shows a fixed time."""

    def now(self) -> int:
        return NOW


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        value = varint()
        if key & 7 == 0:
            yield key >> 3, value
        else:
            yield key >> 3, data[at : at + value]
            at += value


def numbers(data: bytes) -> list[int]:
    out, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            out.append(value)
            value = shift = 0
    return out


def read(packed: bytes) -> tuple[list[str], dict[tuple[str, ...], list[int]]]:
    """Return the value types of a profile, and the values by the functions of each stack."""
    every = list(fields(gzip.decompress(packed)))
    words = [value.decode() for number, value in every if number == 6 and isinstance(value, bytes)]
    assert words[0] == ""
    of = {
        number: [dict(fields(v)) for n, v in every if n == number and isinstance(v, bytes)]
        for number in (1, 2, 4, 5)
    }
    functions = {item[1]: words[int(item[2])] for item in of[5]}
    lines = {item[1]: dict(fields(bytes(item[4]))) for item in of[4]}
    kinds = [f"{words[int(item[1])]}/{words[int(item[2])]}" for item in of[1]]
    seen = {}
    for item in of[2]:
        assert isinstance(item[1], bytes)
        assert isinstance(item[2], bytes)
        seen[tuple(functions[lines[at][1]] for at in numbers(item[1]))] = numbers(item[2])
    return kinds, seen


def test_profile_can_be_decoded() -> None:
    inner, outer = ProfileLine("a.inner", "/a.py", 300), ProfileLine("a.outer", "/a.py", 7)
    samples = {(inner, outer): (3, 5_000_000_000), (outer,): (1, 0)}
    profile = Profile(kinds=(("samples", "count"), ("cpu", "nanoseconds")), samples=samples)
    kinds, seen = read(profiling.packed(profile))
    assert kinds == ["samples/count", "cpu/nanoseconds"]
    assert seen == {("a.inner", "a.outer"): [3, 5_000_000_000], ("a.outer",): [1, 0]}


def test_busy_thread_gets_the_samples_and_a_waiting_one_gets_none() -> None:
    done = threading.Event()

    def works() -> None:
        while not done.is_set():
            sum(range(100))

    threads = [threading.Thread(target=works), threading.Thread(target=done.wait)]
    for thread in threads:
        thread.start()
    try:
        _, seen = read(profiling.packed(profiling.cpu(0.3, Stopped())))
        _, stacks = read(profiling.packed(profiling.threads(Stopped())))
        usual = sys.getswitchinterval()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    of_work = [values for stack, values in seen.items() if any("works" in item for item in stack)]
    of_wait = [values for stack, values in seen.items() if stack[0].endswith("Condition.wait")]
    assert sum(cpu for _, cpu in of_work) > 10 * sum(cpu for _, cpu in of_wait)
    assert any(stack[0].endswith("Condition.wait") for stack in stacks)
    assert usual > profiling.INTERVAL  # the switch interval is restored


def test_cancelled_profile_restores_the_switch_interval() -> None:
    class Ended(Exception):
        pass

    def end() -> None:
        assert sys.getswitchinterval() < usual
        raise Ended

    before, usual = sys.getswitchinterval(), SWITCH_INTERVAL
    sys.setswitchinterval(usual)  # as in a daemon
    try:
        with pytest.raises(Ended):
            profiling.cpu(300, Stopped(), end)
        assert sys.getswitchinterval() == usual
    finally:
        sys.setswitchinterval(before)


def test_objects_are_counted_by_type() -> None:
    class Marked:
        pass

    kept = [Marked() for _ in range(250)]
    with garbage.short_pauses():
        kept += [Marked() for _ in range(250)]
        gc.collect(1)  # freezes them
    kinds, seen = read(profiling.packed(profiling.heap(Stopped())))
    ((number, size),) = [values for (name,), values in seen.items() if name.endswith("Marked")]
    assert kinds == ["inuse_objects/count", "inuse_space/bytes"]
    assert number == len(kept)
    assert size >= 500 * 16


class Listed:
    """Records the garbage collector's generations that code lists, from audit events."""

    def __init__(self) -> None:
        self.generations: list[int] | None = None
        sys.addaudithook(self._note)  # an audit hook cannot be removed

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "gc.get_objects" and self.generations is not None:
            (generation,) = arguments
            assert isinstance(generation, int)
            self.generations.append(generation)


LISTED = Listed()


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """Return the generations that are collected during the test."""
    found: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            found.append(about["generation"])

    gc.collect()
    gc.disable()
    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
        garbage.resume(2**62)
        gc.enable()


def test_objects_are_listed_by_generation() -> None:
    LISTED.generations = []
    try:
        profiling.heap(Stopped())
        listed = LISTED.generations
    finally:
        LISTED.generations = None
    assert listed == [0, 1, 2]


def test_only_young_objects_are_collected_on_request(collected: list[int]) -> None:
    profiling.heap(Stopped(), collects=True)
    assert set(collected) == {0}


def test_nothing_is_collected_on_request_with_many_young_objects(
    collected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "frozen_objects", list)  # it also freezes young objects
    young = [[number] for number in range(2 * garbage.FEW)]
    profiling.heap(Stopped(), collects=True)
    assert (collected, len(young)) == ([], 2 * garbage.FEW)


def test_text_output_is_sorted_by_size() -> None:
    stacks = {
        (ProfileLine("a.few", "/a.py", 1),): (1, 5),
        (ProfileLine("a.many", "/a.py", 2),): (9, 50),
    }
    shown = profiling.text(Profile(kinds=(("n", "count"), ("size", "bytes")), samples=stacks))
    assert shown.splitlines() == ["n/count size/bytes", "9 50 a.many:2", "1 5 a.few:1"]
