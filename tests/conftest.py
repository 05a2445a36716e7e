"""What all tests share: a store in a directory of its own, and a deadline."""

import faulthandler
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from storage.store import Store, open_store
from tests.patience import DEADLINE
from tests.samples import NOW


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, cluster_id="cluster", now=NOW) as opened:
        yield opened
