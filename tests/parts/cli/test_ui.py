"""`steward ui`: a single-use sign-in link that no other user can read."""

import stat
import webbrowser
from pathlib import Path

import pytest

from tests.parts.cli.conftest import FakeDaemon, Terminal, Told

ONE_TIME = {"OneTimeToken": {"OneTimeSecretID": "once"}}
PLACE = "/v1/acl/token/onetime"


def test_link_with_a_token_signs_in(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(PLACE, ONE_TIME, method="POST")
    done = terminal.type("ui", "--token", "secret")
    assert done.output == f"{fake.address}/ui/sign-in#one-time=once\n"


def test_link_without_a_token_is_the_plain_address(fake: FakeDaemon, terminal: Terminal) -> None:
    assert terminal.type("ui").output == f"{fake.address}/ui/\n"


def test_disabled_access_control_creates_no_sign_in_link(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell(PLACE, Told(b"show one", status=400), method="POST")
    assert terminal.type("ui", "--token", "secret").output == f"{fake.address}/ui/\n"


def test_other_users_of_the_host_cannot_read_the_opened_link(
    fake: FakeDaemon, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    fake.tell(PLACE, ONE_TIME, method="POST")
    terminal.type("ui", "--open", "--token", "secret")
    (address,) = opened
    path = Path(address.removeprefix("file://"))
    assert "once" not in address
    assert "one-time=once" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
