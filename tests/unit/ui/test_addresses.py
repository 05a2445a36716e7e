"""The browser tests open every page."""

from daemon.ui.routes import PAGES
from daemon.web.router import Router
from tests.browser.addresses import GROUPS, NO_PAGE

ADDRESSES = [f"/ui/{page.partition('?')[0]}" for pages in GROUPS.values() for page in pages]


def test_every_page_has_an_address_opened_by_the_browser_tests() -> None:
    shown = {page.path for page in PAGES if page.method == "GET"}
    router = Router(page for page in PAGES if page.method == "GET")
    found = {page.path for address in ADDRESSES for page in router.find(address)[0]}
    assert shown - NO_PAGE - found == set()
    assert shown >= NO_PAGE
