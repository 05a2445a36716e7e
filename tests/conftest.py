"""Fixtures for all tests: a store in a temporary directory, and a time limit."""

import faulthandler
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from storage.store import Store, open_store
from tests.patience import DEADLINE
from tests.samples import NOW


def pytest_configure() -> None:
    """Restore the default action of SIGHUP, which `nohup` ignores.

    Shells cannot trap a signal that was ignored when they started.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, cluster_id="cluster", now=NOW) as opened:
        yield opened
