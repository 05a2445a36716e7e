"""The daemon as tests meet it: `steward`, fresh for each of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.daemon import Steward, open_steward


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a development daemon for one test; all that it started ends with it."""
    async with open_steward(tmp_path, "--dev") as running:
        yield running
