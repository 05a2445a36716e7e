"""The user of the daemon, by its settings and by the user that started it."""

import os
import pwd
from collections.abc import Callable

import pytest

from daemon.config.settings import Settings
from daemon.process import service_account
from daemon.process.service_account import ServiceAccount, find_account
from storage.errors import Invalid
from storage.records.pool import Pool

NOBODY = pwd.getpwnam("nobody")
Start = Callable[[int], None]


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> Start:
    return lambda uid: monkeypatch.setattr(os, "geteuid", lambda: uid)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename the host's user `nobody` to `steward`."""
    entry = pwd.struct_passwd(("steward", "x", NOBODY.pw_uid, NOBODY.pw_gid, "", "/", "/bin/false"))
    names = {"steward": entry, "root": pwd.getpwuid(0)}
    monkeypatch.setattr(pwd, "getpwnam", lambda name: names[name])
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 7])
    monkeypatch.setattr(service_account, "unreachable", lambda *_: "")


def test_root_changes_to_the_package_account(machine: None, started_by: Start) -> None:
    started_by(0)
    expected = ServiceAccount("steward", NOBODY.pw_uid, NOBODY.pw_gid, (NOBODY.pw_gid, 7))
    assert find_account(Settings()) == expected
    assert find_account(Settings(user="steward")) == expected


@pytest.mark.parametrize(
    "config",
    [
        Settings(dev=True),
        Settings(dev=True, user="steward"),
        Settings(user="root"),
        Settings(user="0"),
    ],
)
def test_configured_user_is_kept(machine: None, started_by: Start, config: Settings) -> None:
    started_by(0)
    assert find_account(config) is None


def test_ordinary_user_is_kept(machine: None, started_by: Start) -> None:
    started_by(1000)
    assert find_account(Settings()) is None


@pytest.mark.parametrize("user", ["", "steward"])
def test_daemon_with_pools_uses_its_user(machine: None, started_by: Start, user: str) -> None:
    started_by(0)
    config = Settings(user=user, pools={"hpc": Pool(engine="slurm", partition="main")})
    assert find_account(config) is not None


def test_host_without_the_account_keeps_root(
    machine: None, started_by: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", missing)
    started_by(0)
    assert find_account(Settings()) is None
    with pytest.raises(Invalid, match=r"user = 'steward': .* create it \(useradd --system"):
        find_account(Settings(user="steward"))


def test_only_root_can_change_its_user(machine: None, started_by: Start) -> None:
    started_by(1000)
    with pytest.raises(Invalid, match="only root can become another user"):
        find_account(Settings(user="steward"))


def test_numeric_user_needs_no_account(machine: None, started_by: Start) -> None:
    started_by(0)
    assert find_account(Settings(user="3999999999")) == ServiceAccount(
        "3999999999", 3999999999, 3999999999
    )
    with pytest.raises(Invalid):
        find_account(Settings(user="4294967295"))


def test_user_with_insufficient_access_is_named_and_not_chosen_automatically(
    machine: None, started_by: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_by(0)
    monkeypatch.setattr(service_account, "unreachable", lambda *_: "it cannot pass through /root")
    assert find_account(Settings()) is None
    assert service_account.why_root(Settings()) == "it cannot pass through /root"
    with pytest.raises(Invalid, match="user = 'steward': it cannot pass through /root"):
        find_account(Settings(user="steward"))
