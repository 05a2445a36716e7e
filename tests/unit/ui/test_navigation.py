"""Each page belongs to one page of the navigation."""

import pytest

from daemon.ui.navigation import PLACES, is_current, place_above
from daemon.ui.routes import PAGES

# Pages without a place: reached from every page, or shown to users who have not signed in.
EVERYWHERE = {
    "/ui/density",
    "/ui/check",
    "/ui/events",
    "/ui/find",
    "/ui/keys",
    "/ui/not-found",
    "/ui/payload/{digest}",
    "/ui/plan",
    "/ui/run",
    "/ui/sign-in",
    "/ui/sign-out",
    "/ui/static/{name}",
}


def test_each_page_has_a_place_in_the_navigation() -> None:
    paths = {page.path for page in PAGES}
    assert {path for path in paths if not place_above(path)[0]} == EVERYWHERE


@pytest.mark.parametrize(
    ("here", "name"),
    [
        ("/ui/", "Overview"),
        ("/ui/job/a%2Fb/launches", "Jobs"),
        ("/ui/allocation/5f1c/terminal", "Jobs"),
        ("/ui/queues", "Runs"),
        ("/ui/freezes", "Calendars"),
        ("/ui/variable/app/settings", "Variables"),
        ("/ui/policy/readers", "Access"),
        ("/ui/binding-rule/5f1c", "Access"),
        ("/ui/notify", "Settings"),
        ("/ui/find", ""),
    ],
)
def test_navigation_marks_the_page_that_leads_to_a_page(here: str, name: str) -> None:
    assert place_above(here)[1] == name
    marked = [words for place, words, _ in PLACES if is_current(place, here)]
    assert marked == ([name] if name else [])
