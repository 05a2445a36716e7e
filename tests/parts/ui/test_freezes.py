"""The banner of a freeze on each page, and the page that creates and ends freezes."""

import re

from tests.parts.ui.conftest import Site

FIELDS = {"reason": "<b>release</b>", "namespace": "default", "strength": "steps", "until": "+2h"}


async def test_each_page_shows_a_freeze_until_its_end(open_site: Site) -> None:
    browser = open_site.browser()
    assert "No new runs" not in (await browser.get("/ui/jobs")).text
    made = await browser.send("/ui/freezes", None, **FIELDS)
    assert made.headers["Location"] == "/ui/freezes"
    for path in ("/ui/", "/ui/jobs", "/ui/calendars", "/ui/freezes"):
        page = (await browser.get(path)).text
        assert "Freeze of namespace default: &lt;b&gt;release&lt;/b&gt;. No new runs" in page
        assert "until <time" in page
    match = re.search(r'name="id" value="([^"]+)"', page)
    assert match is not None
    await browser.send("/ui/freezes/thaw", None, id=match[1], namespace="default")
    page = (await browser.get("/ui/jobs")).text
    assert "No new runs" not in page
