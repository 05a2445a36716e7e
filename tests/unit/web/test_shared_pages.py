"""Shared pages: their age, their number, and the rights of their viewers."""

from daemon.web.shared_pages import AGE, MOST, SharedPages


def test_only_pages_that_are_too_old_are_dropped() -> None:
    pages, grant = SharedPages(), object()
    old, young = pages.find(("old",), grant, 0.0), pages.find(("young",), grant, 0.5)
    assert pages.find(("old",), grant, AGE - 0.01) is old
    assert pages.find(("old",), grant, AGE) is not old
    assert pages.find(("young",), grant, AGE) is young
    assert pages.find(("young",), grant, 0.5 + AGE) is not young


def test_page_for_new_rights_replaces_the_older_page() -> None:
    pages, first, second = SharedPages(), object(), object()
    before = pages.find(("a",), first, 0.0)
    other = pages.find(("b",), first, 0.1)
    after = pages.find(("a",), second, 0.2)
    assert after is not before
    assert (after.grant, after.began) == (second, 0.2)
    assert pages.find(("b",), first, 0.1 + AGE - 0.01) is other
    assert pages.find(("a",), second, 0.1 + AGE) is after  # `b` is dropped, and `a` is younger


def test_oldest_of_too_many_pages_is_dropped() -> None:
    pages, grant = SharedPages(), object()
    found = [pages.find((number,), grant, 0.0) for number in range(MOST + 1)]
    assert pages.find((MOST,), grant, 0.0) is found[MOST]
    assert pages.find((1,), grant, 0.0) is found[1]
    assert pages.find((0,), grant, 0.0) is not found[0]
