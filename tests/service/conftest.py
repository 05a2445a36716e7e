"""The daemon for service tests: `steward`, a new one for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.daemon import Steward, open_steward


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a development daemon for one test; all its tasks end with it."""
    async with open_steward(tmp_path, "--dev") as running:
        yield running
