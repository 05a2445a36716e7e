"""A daemon, and a real browser that shows its pages."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import PROGRAM, Tab, open_tab, running_browser
from tests.browser.sample_jobs import fill
from tests.service.daemon import Steward, open_steward
from tests.watchdog import limit

DEADLINE = 300  # seconds: tests have many steps, and a browser is slow on a busy host
SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    with limit(DEADLINE):
        yield


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one browser for all tests: its start takes seconds of CPU time."""
    if PROGRAM is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    with running_browser(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Tab]:
    async with open_tab(chromium) as tab:
        yield tab


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens."""
    async with open_steward(tmp_path, "--dev", "--acl") as running:
        await running.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        running.token = SECRET
        yield running


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon without access control, with jobs of each kind."""
    async with open_steward(tmp_path, "--dev") as running:
        await fill(running)
        yield running


async def sign_in(browser: Tab, steward: Steward) -> None:
    """Sign in with the link that the command line prints."""
    done = await steward.cli("ui", STEWARD_TOKEN=SECRET)
    await browser.open(done.stdout.decode().strip())
    await browser.press("#sign-in button")
    assert await browser.value("location.pathname") == "/ui/"


async def act(browser: Tab, form: str) -> None:
    """Open the confirmation of a form's button, and confirm the action."""
    await browser.value(
        f"document.querySelector(\"form[action^='{form}']\").parentElement.open = true"
    )
    await browser.press(f"form[action^='{form}'] button:not(.copy)")
