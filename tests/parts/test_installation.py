"""The daemon as a service: written files, calls of systemd, and files that stay unchanged."""

import grp
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon.process import installation
from daemon.process.installation import (
    UNITS,
    UnitLocation,
    check_program_owner,
    executable_path,
    install,
    make_account,
    uninstall,
    unit_text,
)
from storage.errors import Invalid, Refused


class Asked:
    """The calls of systemctl."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, verb: str, unit: str) -> None:
        self.words.append(f"{verb} {unit}".strip())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnitLocation:
    monkeypatch.setattr(installation, "check_program_owner", lambda path, owner: None)
    return UnitLocation(tmp_path)


@pytest.fixture
def unit(place: UnitLocation) -> Path:
    return place.directory / "steward.service"


def test_installation_prints_its_actions(place: UnitLocation, unit: Path) -> None:
    request = Asked()
    said = list(install(place, ["/opt/steward"], request, now=False))
    assert request.words == ["daemon-reload", "enable steward.service"]
    assert "ExecStart=/opt/steward agent\n" in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    assert said[:3] == [f"wrote {place.directory / name}" for name in UNITS]


def test_installation_starts_the_unit_on_request(place: UnitLocation) -> None:
    request = Asked()
    list(install(place, ["/opt/steward"], request, now=True))
    assert request.words[-1] == "restart steward.service"


def test_repeated_installation_changes_nothing(place: UnitLocation) -> None:
    list(install(place, ["/opt/steward"], Asked(), now=False))
    said = list(install(place, ["/opt/steward"], Asked(), now=False))
    assert all(line.startswith("unchanged: ") for line in said[:3])


def test_installation_is_removed(place: UnitLocation) -> None:
    list(install(place, ["/opt/steward"], Asked(), now=False))
    request = Asked()
    list(uninstall(place, request))
    assert request.words == [
        "disable --now steward.socket",
        "disable --now steward.service",
        "daemon-reload",
    ]
    assert list(place.directory.iterdir()) == []
    assert len(list(uninstall(place, Asked()))) == 1


def test_unit_of_another_user_is_not_changed(place: UnitLocation, unit: Path) -> None:
    unit.write_text("[Service]\nExecStart=/bin/mine\n")
    for attempt in (
        install(place, ["/opt/steward"], Asked(), now=False),
        uninstall(place, Asked()),
    ):
        with pytest.raises(Refused, match="not created by steward install"):
            list(attempt)
    assert unit.read_text().startswith("[Service]")


def test_program_writable_by_others_does_not_run_as_root(tmp_path: Path) -> None:
    open_place = tmp_path / "open"
    open_place.mkdir()
    open_place.chmod(0o777)
    (open_place / "steward").touch()
    with pytest.raises(Invalid, match="other users can change"):
        check_program_owner(open_place / "steward")


def test_link_to_a_file_writable_by_others_is_detected(tmp_path: Path) -> None:
    open_place = tmp_path / "open"
    open_place.mkdir()
    open_place.chmod(0o777)
    (tmp_path / "steward").symlink_to(open_place / "steward")
    (open_place / "steward").touch()
    with pytest.raises(Invalid, match="other users can change"):
        check_program_owner(tmp_path / "steward")


def test_link_writable_by_others_is_not_followed_as_root(tmp_path: Path) -> None:
    open_place = tmp_path / "open"
    open_place.mkdir()
    open_place.chmod(0o777)
    (open_place / "steward").symlink_to("/bin/sh")
    (tmp_path / "steward").symlink_to(open_place / "steward")
    for link in (open_place / "steward", tmp_path / "steward"):
        with pytest.raises(Invalid, match="other users can change"):
            check_program_owner(link)


def test_program_writable_only_by_root_can_run() -> None:
    check_program_owner(Path("/bin/sh"))


def test_program_is_located_from_any_directory() -> None:
    assert executable_path("steward", {"LAUNCHED_STEWARD": "/usr/local/bin/steward"}) == [
        "/usr/local/bin/steward"
    ]
    assert executable_path("/x/daemon/__main__.py", {}) == [sys.executable, "-m", "daemon"]
    assert executable_path("bin/steward", {}) == [f"{os.getcwd()}/bin/steward"]


def test_program_with_an_unusual_name_is_escaped_for_systemd() -> None:
    assert "ExecStart='/opt/100%% $$mine/steward' agent\n" in unit_text(
        "steward.service", ["/opt/100% $mine/steward"]
    )


@pytest.mark.parametrize("name", UNITS)
def test_every_line_of_a_unit_is_explained(name: str) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    body = unit_text(name, []).partition("[Unit]")[2].partition("[Install]")[0]
    names = set(re.findall(r"^(\w+)=", body, re.MULTILINE)) - {"Description", "After", "Wants"}
    assert {name for name in names if f"`{name}" not in docs} == set()


# ---- for an ordinary user ---------------------------------------------------------------


def test_user_installs_a_user_unit(tmp_path: Path) -> None:
    place, asked = UnitLocation(tmp_path / "systemd/user", of_user=True), Asked()
    said = list(install(place, ["/bin/true"], asked, now=True))
    assert asked.words[-1] == "restart steward.service"
    assert any("enable-linger" in item for item in said)
    assert said[-1].startswith("the daemon runs: see systemctl --user status steward")
    assert (place.directory / "steward.service").exists()


def test_user_unit_needs_no_root_permissions() -> None:
    text = unit_text("steward.service", ["/home/ann/steward"], of_user=True)
    assert "ExecStart=/home/ann/steward agent\n" in text
    assert "WantedBy=default.target\n" in text
    assert "KillMode=process\nDelegate=yes\n" in text
    assert re.findall(r"Protect|StateDirectory|multi-user|network-online", text) == []


def test_root_cannot_install_a_user_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation, "_RUNS_HERE", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Refused, match="without it"):
        installation._unit_location(user=True)


def test_settings_of_a_package_are_not_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "_RUNS_HERE", tmp_path)
    monkeypatch.setattr(installation, "_OF_PACKAGES", (tmp_path,))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "steward.service").touch()
    with pytest.raises(Refused, match="a package has installed the service"):
        installation._unit_location(user=False)


@pytest.mark.parametrize("of_user", [False, True])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path, *, of_user: bool) -> None:
    paths = [tmp_path / name for name in UNITS]
    for path in paths:
        path.write_text(unit_text(path.name, ["/bin/sh"], of_user=of_user))
    kind = "--user" if of_user else "--system"
    done = subprocess.run(
        ["systemd-analyze", kind, "verify", *paths], capture_output=True, text=True
    )
    said = done.stderr.splitlines()
    assert [line for line in said if any(f"{path.name}:" in line for path in paths)] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_every_omitted_protection_has_a_reason(tmp_path: Path) -> None:
    unit = tmp_path / "steward.service"
    unit.write_text(unit_text(unit.name, ["/bin/sh"]))
    words = ["systemd-analyze", "security", "--offline=true", "--json=short", unit]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this systemd-analyze has no offline mode")
    docs = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    asked = {
        re.match(r"\w+", pair["name"])[0] for pair in json.loads(done.stdout) if not pair["set"]
    }
    assert {name for name in asked if f"`{name}" not in docs} == set()


def test_daemon_user_is_created_and_can_read_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    own = grp.getgrgid(os.getegid())
    monkeypatch.setattr(grp, "getgrnam", lambda _: own)
    settings = tmp_path / "etc"
    settings.mkdir(mode=0o700)
    for name, mode in (("steward.toml", 0o600), ("root.key", 0o600)):
        (settings / name).touch(mode)
    said = make_account(asked.extend, settings)
    assert asked[:2] == ["systemd-sysusers", "--inline"]
    assert asked[2].startswith("u steward - ")
    modes = {path.name: path.stat().st_mode & 0o777 for path in settings.iterdir()}
    assert modes == {"steward.toml": 0o640, "root.key": 0o600}
    assert settings.stat().st_mode & 0o777 == 0o750
    assert "will run as the user steward" in said


def test_missing_daemon_user_is_reported(tmp_path: Path) -> None:
    def run(words: Sequence[str]) -> None:
        raise Refused("systemd-sysusers failed: 1")

    said = make_account(run, tmp_path / "etc")
    assert "will run as root" in said
    assert not (tmp_path / "etc").exists()
