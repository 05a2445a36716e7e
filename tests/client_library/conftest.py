"""A real daemon, and a way to run a program under asyncio and under Trio."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client_library.programs import Backend
from tests.service.daemon import Steward, open_steward


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param)


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev") as running:
        yield running
