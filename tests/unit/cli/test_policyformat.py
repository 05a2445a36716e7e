"""The text of a policy, evenly indented, with the same meaning."""

import pytest

from daemon.acl.policy_rules import parse_policy
from daemon.cli.core.policy_format import formatted

UGLY = """

# rights of the team


path "a/*" {
capabilities=["read",
"list"]
      allowed_parameters = {
"x=y"   = ["}"] # not a brace
}
    }
namespace "default" { policy="read" }

"""
PRETTY = """\
# rights of the team

path "a/*" {
  capabilities = ["read",
    "list"]
  allowed_parameters = {
    "x=y" = ["}"] # not a brace
  }
}
namespace "default" { policy="read" }
"""


def test_policy_is_indented_consistently() -> None:
    assert formatted(UGLY) == PRETTY


def test_formatting_twice_changes_nothing() -> None:
    assert formatted(PRETTY) == PRETTY


@pytest.mark.parametrize("text", [UGLY, "", 'path "a" { policy = <<X\nread\nX\n}'])
def test_formatting_does_not_change_the_meaning(text: str) -> None:
    lenient = text.replace("<<X\nread\nX", '"read"')
    assert parse_policy(formatted(lenient)) == parse_policy(lenient)


def test_heredoc_contents_keep_their_position() -> None:
    assert formatted("a = <<X\n    b {\nX\nc = 1\n") == "a = <<X\n    b {\nX\nc = 1\n"
