"""Every persistent effect of the daemon is a crash point."""

import os
from pathlib import Path

import pytest

from tests.crash import points
from tests.crash.point_counters import AFTER, BEFORE, PointCounters
from tests.crash.wrappers import Wrappers


class Killed(BaseException):
    """An exception that the test raises instead of killing the process."""


def kill() -> None:
    raise Killed


@pytest.fixture
def counters(tmp_path: Path) -> PointCounters:
    return PointCounters(tmp_path / "points")


def test_every_call_with_an_effect_is_registered() -> None:
    assert points.strangers() == {}


def test_every_effect_is_wrapped(monkeypatch: pytest.MonkeyPatch, counters: PointCounters) -> None:
    wrapped: list[str] = []
    wrappers = Wrappers(counters, kill)
    for way in ("plain", "later", "talk"):
        monkeypatch.setattr(wrappers, way, lambda owner, name, effect: wrapped.append(effect))
    monkeypatch.setattr(wrappers, "_commits", lambda: None)
    wrappers.everything()
    kinds = {name.rpartition(":")[2] for name in counters.names}
    assert kinds - {*wrapped} == {
        "Store.write",
        "Connection.COMMIT",
        "Connection.backup",
        "Connection.executescript",
    }


def test_excluded_call_points_exist() -> None:
    names = points.every()
    gone = [prefix for prefix in points.APART if not any(name.startswith(prefix) for name in names)]
    assert gone == []


def test_a_call_is_named_after_its_first_party_caller(
    tmp_path: Path, counters: PointCounters
) -> None:
    names = [name for name in counters.names if name.startswith("storage/store.py:")]
    assert names == [
        "storage/store.py:lock:os.open",
        "storage/store.py:lock:os.pwrite",
        "storage/store.py:lock:os.truncate",
    ]


def test_kill_happens_before_or_after_the_call_at_the_requested_count(
    tmp_path: Path, counters: PointCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage.store import lock

    monkeypatch.setattr(os, "pwrite", os.pwrite)  # restored by the fixture
    Wrappers(counters, kill).plain(os, "pwrite", "os.pwrite")
    point = "storage/store.py:lock:os.pwrite"
    counters.arm(point, AFTER, 2)
    with lock(tmp_path):
        assert not counters.has_fired
    with pytest.raises(Killed), lock(tmp_path):
        pass
    assert counters.has_fired
    assert (counters.hits(point, BEFORE), counters.hits(point, AFTER)) == (2, 2)
    assert (tmp_path / "steward.lock").read_text() != ""


def test_each_module_with_effects_is_called_by_its_searched_name() -> None:
    found = {name.rpartition(":")[2].rpartition(".")[0] for name in points.every()}
    assert points.EFFECTS.keys() - found == set()
