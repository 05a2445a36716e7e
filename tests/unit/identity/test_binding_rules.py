"""The rules that select a login."""

import pytest

from daemon.identity.binding_rules import select
from daemon.identity.claim_mapping import MappedClaims
from storage.records.auth_method import BindingRule

CLAIMS = MappedClaims(value={"repo": "acme/web"}, lists={"groups": ["ops", "dev"]})


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("ops in list.groups", True),
        ('"qa" in list.groups', False),
        ('list.groups contains "dev"', True),
        ('value.repo == "acme/web"', True),
        ('value.repo matches "^acme/" and "ops" in list.groups', True),
        ('value.branch == "main"', False),
        ("value.branch is empty", True),
        ('value.repo == "acme/web" and not "qa" in list.groups', True),
        ('groups contains "ops"', False),  # an unknown root matches nothing
        ("value.repo in", False),  # the expression cannot be parsed
    ],
)
def test_selector_selects_rules(selector: str, matches: bool) -> None:
    rule = BindingRule(id="r", auth_method="ci", selector=selector)
    assert select([rule], CLAIMS) == ([rule] if matches else [])
