"""Fixtures for all tests: a store in a temporary directory, and a time limit."""

import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from daemon.runner.drivers.cgroup_v2 import name_of
from storage import schema
from storage.store import FILE_NAME, Store, open_store
from tests.heap import keep_present_objects
from tests.samples import NOW
from tests.time_limits import DEADLINE
from tests.watchdog import limit

if TYPE_CHECKING:
    from tests.file_scheduler import FileScheduler


def pytest_configure() -> None:
    """Restore the default actions of SIGHUP and SIGINT.

    `nohup` ignores the first, and a script ignores the second for its background commands. Shells
    cannot trap a signal that was ignored when they started, and tests would wait without end.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Disable garbage collection while pytest loads the tests, which all stay in memory."""
    gc.disable()


# pytest-xdist gives whole files to its workers in this order. Files that wait for daemons and
# browsers take longest, so they come first. A worker that took one last would end long after the
# others.
_FIRST = (
    "tests/wire/",
    "tests/parts/api/test_stall",
    "tests/browser/",
    "tests/simulation/",
    "tests/service/",
    "tests/crash/",
    "tests/client_library/",
    "tests/attacks/",
    "tests/parts/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by `_FIRST`."""
    items.sort(
        key=lambda item: next(
            (place for place, start in enumerate(_FIRST) if item.nodeid.startswith(start)),
            len(_FIRST),
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "FileScheduler":
    """Replace the scheduler of pytest-xdist."""
    from tests.file_scheduler import FileScheduler  # imported late: needs pytest-xdist

    return FileScheduler(config, log)


def pytest_collection_finish() -> None:
    """Exclude the loaded tests from the garbage collections of each test."""
    gc.enable()
    keep_present_objects()


# No deadline: the duration of an input depends on the load of the host, not only on Steward.
settings.register_profile("steward", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steward")


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    with limit(DEADLINE):
        yield


@pytest.fixture(autouse=True)
def _blocks_no_signal() -> Iterator[None]:
    """Fail a test that leaves signals blocked, because later tests and daemons inherit the mask."""
    yield
    left = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    assert not left


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a new store.

    Creating a store takes longer than most tests with a store.
    """
    path = tmp_path_factory.mktemp("new") / FILE_NAME
    schema.prepare(path, cluster_id="cluster", now=NOW)
    return path


@pytest.fixture
async def store(tmp_path: Path, new_store: Path) -> AsyncIterator[Store]:
    shutil.copy(new_store, tmp_path)
    async with open_store(tmp_path, cluster_id="cluster", now=NOW) as opened:
        yield opened


@pytest.fixture(scope="session", autouse=True)
def _leaves_no_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the empty control groups of daemons that tests killed."""
    yield
    base = tmp_path_factory.getbasetemp()
    owners = [path for depth in ("*", "*/*", "*/*/*") for path in base.glob(f"{depth}/")]
    names = {name_of(owner, kind) for owner in owners for kind in ("", "limits-")}
    places = [Path(at) for at, _, _ in os.walk("/sys/fs/cgroup") if "/steward-" in at]
    for place in sorted(places, reverse=True):
        if names.intersection(place.parts):
            with suppress(OSError):  # packaging/check reports a process in it
                place.rmdir()
