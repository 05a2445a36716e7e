"""Tokens by the beginning of their accessor, against a fake daemon."""

from typing import Any

import pytest

from tests.parts.cli.conftest import FakeDaemon, Terminal, Told

ACCESSOR = "97bdc435-7d6e-4bd5-8a0b-0d6c34b4a1f2"
OF_SECRETS = "97XrkGe9ZQkzVbPu7q0TtY1d"
STUB = {
    "Type": "client",
    "Policies": ["deploy"],
    "Roles": None,
    "Global": False,
    "Hash": None,
    "CreateTime": "2026-11-21T01:40:00Z",
    "ExpirationTime": None,
    "CreateIndex": 5,
    "ModifyIndex": 5,
}
TOKEN = {**STUB, "AccessorID": ACCESSOR, "Name": "ci", "SecretID": "", "ExpirationTTL": ""}


@pytest.fixture(autouse=True)
def _tokens(fake: FakeDaemon) -> None:
    stubs = [
        {**STUB, "AccessorID": ACCESSOR, "Name": "ci"},
        {**STUB, "AccessorID": OF_SECRETS, "Name": "app"},
    ]
    fake.tell("/v1/acl/tokens", stubs)


@pytest.mark.parametrize(
    ("words", "method"),
    [(("info",), "GET"), (("update", "--name", "ci"), "POST"), (("delete",), "DELETE")],
)
def test_accessor_prefix_is_sufficient(
    fake: FakeDaemon, terminal: Terminal, words: tuple[str, ...], method: str
) -> None:
    path = f"/v1/acl/token/{ACCESSOR}"
    for item in {"GET", method}:
        fake.tell(path, TOKEN, method=item)
    result = terminal.type("acl", "token", *words, "97bdc435")
    assert (result.exit_code, result.stderr) == (0, "")
    assert fake.asked(path)[-1].method == method
    assert fake.asked("/v1/acl/tokens")[0].query == {}


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("token", "lookup", "--accessor", "97X"), "/v1/auth/token/lookup-accessor"),
        (("token", "renew", "--accessor", "97X"), "/v1/auth/token/renew-accessor"),
        (("token", "revoke", "--accessor", "97X"), "/v1/auth/token/revoke-accessor"),
        (("token", "capabilities", "--accessor", "97X", "a/b"), "/v1/sys/capabilities-accessor"),
    ],
)
def test_command_works_with_tokens_of_the_vault_api(
    fake: FakeDaemon, terminal: Terminal, words: tuple[str, ...], path: str
) -> None:
    fake.tell(path, {"data": {"capabilities": ["read"]}}, method="POST")
    result = terminal.type(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert fake.asked(path)[0].body["accessor"] == OF_SECRETS


def explained(fake: FakeDaemon, terminal: Terminal, whose: str) -> Any:
    fake.tell("/v1/acl/explain", {"Allowed": True, "Needs": "nothing"}, method="POST")
    assert terminal.type("policy", "explain", whose, "GET", "/v1/jobs").exit_code == 0
    (asked,) = fake.asked("/v1/acl/explain")
    return asked.body["Token"]


def test_denial_is_explained_for_an_accessor_prefix(fake: FakeDaemon, terminal: Terminal) -> None:
    assert explained(fake, terminal, "97bdc435") == ACCESSOR


@pytest.mark.parametrize("whole", [ACCESSOR, "s.97XrkGe9ZQkzVbPu7q0TtY1d"])
def test_complete_accessor_needs_no_search(
    fake: FakeDaemon, terminal: Terminal, whole: str
) -> None:
    assert explained(fake, terminal, whole) == whole
    assert fake.asked("/v1/acl/tokens") == []


@pytest.mark.parametrize("listing", [None, Told(b"Permission denied", 403)])
def test_argument_that_may_be_a_secret_is_not_sent_in_a_query(
    fake: FakeDaemon, terminal: Terminal, listing: Told | None
) -> None:
    if listing is not None:
        fake.tell("/v1/acl/tokens", listing)
    assert explained(fake, terminal, "own-secret") == "own-secret"
    assert fake.asked("/v1/acl/tokens")[0].query == {}


def test_ambiguous_accessor_prefix_is_refused_with_a_list(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    result = terminal.type("acl", "token", "delete", "97")
    assert (result.exit_code, result.stderr) == (
        1,
        "steward: '97' is a prefix of 2 tokens; pass more of it:\n"
        f"  {ACCESSOR} (ci)\n  {OF_SECRETS} (app)\n",
    )
    assert [seen.method for seen in fake.seen] == ["GET"]


def test_empty_text_is_no_accessor_prefix(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/acl/tokens", [{**STUB, "AccessorID": ACCESSOR, "Name": "ci"}])
    assert terminal.type("acl", "token", "delete", "").exit_code == 1
    assert fake.asked(f"/v1/acl/token/{ACCESSOR}") == []
