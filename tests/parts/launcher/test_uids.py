"""Users of allocations: no two allocations share a user, despite removals, restarts and kills."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.strategies import integers

from daemon.launcher.alloc_uids import AllocUids
from daemon.launcher.channel import Refusal

NUMBERS = (80_000, 80_003)


class Machine:
    """A data directory, and a launcher that can be killed at any moment."""

    def __init__(self, place: Path, numbers: tuple[int, int] = NUMBERS) -> None:
        self.place, self.numbers = place, numbers
        self.allocs = place / "alloc"
        self.allocs.mkdir()
        self.restart()

    def restart(self) -> None:
        self.uids = AllocUids(str(self.allocs), self.numbers)

    def begin(self, alloc_id: str) -> int | None:
        number = self.uids.of(alloc_id)
        (self.allocs / alloc_id).mkdir(exist_ok=True)
        return number

    def remove(self, alloc_id: str) -> None:
        (self.allocs / alloc_id).rmdir()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_allocations_have_permanent_unique_user_ids(machine: Machine) -> None:
    found = [machine.begin(name) for name in "abc"]
    assert found == [80_000, 80_001, 80_002]
    machine.restart()
    assert [machine.uids.of(name) for name in "abc"] == found
    assert machine.begin("d") == 80_003


def test_user_id_is_free_without_remaining_files_of_its_owner(machine: Machine) -> None:
    before = [machine.begin(name) for name in "abcd"]
    with pytest.raises(OSError, match="all 4 user IDs of task_uids"):
        machine.uids.of("e")
    machine.uids.release("b")
    with pytest.raises(OSError, match="task_uids"):
        machine.uids.of("e")
    (machine.allocs / "b").rename(machine.allocs / "b.removed")
    machine.uids.release("b")
    with pytest.raises(OSError, match="task_uids"):
        machine.uids.of("e")
    (machine.allocs / "b.removed").rmdir()
    machine.uids.release("b")
    assert machine.uids.of("e") == before[1]


def test_user_id_without_a_directory_is_free_after_a_restart(
    machine: Machine,
) -> None:
    machine.uids.of("killed")
    machine.restart()
    assert os.listdir(machine.place / "uids") == []
    assert machine.uids.of("next") == 80_000


def test_allocation_older_than_user_ids_has_none(machine: Machine) -> None:
    (machine.allocs / "old").mkdir()
    assert machine.uids.of("old") is None
    machine.uids.inherit("heir", "old")
    assert machine.begin("heir") is None
    machine.restart()
    assert machine.uids.of("heir") is None


def test_allocation_that_inherits_data_keeps_its_user_id(machine: Machine) -> None:
    number = machine.begin("first")
    machine.uids.inherit("second", "first")
    assert machine.begin("second") == number
    machine.remove("first")
    machine.uids.release("first")
    assert [machine.begin(name) for name in "abc"] == [80_001, 80_002, 80_003]
    assert machine.uids.of("second") == number


def test_inherited_user_id_is_no_longer_used_by_its_first_owner(machine: Machine) -> None:
    number = machine.begin("first")
    for _ in range(2):
        machine.uids.inherit("second", "first")
        assert machine.begin("second") == number
        with pytest.raises(Refusal, match="another allocation has taken over"):
            machine.uids.of("first")
        machine.uids.inherit("third", "first")
        assert machine.begin("third") == 80_001
        machine.restart()
    machine.remove("second")
    machine.uids.release("second")
    assert machine.uids.of("first") == number


def test_inheritance_of_a_user_id_survives_a_kill_before_the_directory_exists(
    machine: Machine,
) -> None:
    number = machine.begin("first")
    machine.uids.inherit("second", "first")
    machine.restart()
    machine.uids.inherit("second", "first")
    assert machine.begin("second") == number


def test_user_id_of_an_account_is_skipped(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(number: int) -> object:
        if number != 80_000:
            raise KeyError
        return object()

    monkeypatch.setattr(pwd, "getpwuid", find)
    assert machine.begin("a") == 80_001


class Life(RuleBasedStateMachine):
    """Allocations are created and removed, and the launcher is killed between any two steps."""

    @initialize()
    def begin(self) -> None:
        self.held = tempfile.TemporaryDirectory()
        self.machine = Machine(Path(self.held.name), (80_000, 80_007))
        self.numbers: dict[str, int | None] = {}
        self.count = 0

    @rule(made=integers(0, 2), heir=integers(0, 20))
    def place(self, made: int, heir: int) -> None:
        """Place an allocation, perhaps as the replacement of an earlier one (`heir`).

        If `made` is 0, the launcher restarts before the directory is created. The daemon may be
        compromised.
        """
        name, self.count = f"alloc-{self.count}", self.count + 1
        if heir < len(self.numbers):
            self.machine.uids.inherit(name, sorted(self.numbers)[heir])
        try:
            number = self.machine.uids.of(name)
        except OSError:
            return
        if made:
            (self.machine.allocs / name).mkdir()
            self.numbers[name] = number
        else:
            self.machine.restart()

    @rule(which=integers(0, 20), step=integers(0, 2))
    def remove(self, which: int, step: int) -> None:
        if not self.numbers:
            return
        name = sorted(self.numbers)[which % len(self.numbers)]
        self.machine.remove(name)
        del self.numbers[name]
        if step:
            self.machine.uids.release(name)
        else:
            self.machine.restart()

    @rule()
    def kill(self) -> None:
        self.machine.restart()

    @invariant()
    def numbers_stay_and_are_not_shared(self) -> None:
        if not hasattr(self, "machine"):
            return
        found = []
        for name, number in self.numbers.items():
            try:
                found.append(self.machine.uids.of(name))
            except Refusal:  # another allocation has its number
                continue
            assert found[-1] == number
        assert len(found) == len({*found})
        assert {*found} == {*self.numbers.values()}  # no number is lost while it owns files

    def teardown(self) -> None:
        if hasattr(self, "held"):
            self.held.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
