"""Parsing of resource IDs."""

import pytest

from daemon.identity.resource_id import contains, parse, path

SITE = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/sites/one"


def test_an_identifier_has_parts() -> None:
    found = parse(SITE)
    assert found is not None
    assert (found.subscription, found.group) == ("s", "g")
    assert (found.type, found.namespace, found.name) == (
        "Microsoft.Web/sites",
        "Microsoft.Web",
        "one",
    )
    assert found.path == SITE


def test_resource_can_be_within_another() -> None:
    found = parse(f"{SITE}/slots/two/")
    assert found is not None
    assert (found.type, found.names) == ("Microsoft.Web/sites/slots", ("one", "two"))
    assert found.path == f"{SITE}/slots/two"


@pytest.mark.parametrize("text", [SITE.upper(), SITE.lower(), f"{SITE}/"])
def test_case_is_ignored(text: str) -> None:
    one, other = parse(SITE), parse(text)
    assert one is not None
    assert other is not None
    assert one.is_same(other)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "rubbish",
        f"{SITE}?x=1",
        f"{SITE}#x",
        f"x{SITE}",
        f"{SITE}/slots",
        f"{SITE}/../two",
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/sites/../../../rg-two/x/y",
        "/subscriptions/../resourceGroups/g/providers/Microsoft.Web/sites/one",
        "/subscriptions/s/resourceGroups/g",
        "/subscriptions//resourceGroups/g/providers/Microsoft.Web/sites/one",
        f"{SITE}\n",
    ],
)
def test_unparsable_text_is_no_identifier(text: str | None) -> None:
    assert parse(text) is None


def test_address_contains_only_quoted_text() -> None:
    assert path("a/b", "c?d", "e%2f", "ü") == "/a%2Fb/c%3Fd/e%252f/%C3%BC"


def test_names_are_compared_case_insensitively() -> None:
    assert contains(["RG-One"], "rg-one")
    assert not contains(["rg-one"], "rg-o")
    assert not contains(None, "")
