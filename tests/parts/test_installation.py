"""The daemon as a service: what is written, what systemd is asked for, and what is left alone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import installation
from daemon.installation import check_trusted, install, program, uninstall, unit_text
from storage.errors import Invalid, Refused


class Asked:
    """What systemctl was asked to do."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, verb: str, unit: str) -> None:
        self.words.append(f"{verb} {unit}".strip())


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(installation, "check_trusted", lambda path: None)
    return tmp_path / "steward.service"


def test_it_is_set_up_and_says_what_it_did(unit: Path) -> None:
    asked = Asked()
    said = list(install(unit, ["/opt/steward"], asked, now=False))
    assert asked.words == ["daemon-reload", "enable steward.service"]
    assert "ExecStart=/opt/steward agent\n" in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    assert said[0] == f"wrote {unit}"


def test_it_is_started_if_that_is_asked_for(unit: Path) -> None:
    asked = Asked()
    list(install(unit, ["/opt/steward"], asked, now=True))
    assert asked.words[-1] == "restart steward.service"


def test_setting_it_up_again_changes_nothing(unit: Path) -> None:
    list(install(unit, ["/opt/steward"], Asked(), now=False))
    said = list(install(unit, ["/opt/steward"], Asked(), now=False))
    assert said[0].startswith("found as it should be")


def test_it_is_taken_away(unit: Path) -> None:
    list(install(unit, ["/opt/steward"], Asked(), now=False))
    asked = Asked()
    list(uninstall(unit, asked))
    assert asked.words == ["disable --now steward.service", "daemon-reload"]
    assert not unit.exists()
    assert len(list(uninstall(unit, Asked()))) == 1


def test_a_unit_of_somebody_else_is_left_alone(unit: Path) -> None:
    unit.write_text("[Service]\nExecStart=/bin/mine\n")
    for attempt in (install(unit, ["/opt/steward"], Asked(), now=False), uninstall(unit, Asked())):
        with pytest.raises(Refused, match="somebody else"):
            list(attempt)
    assert unit.read_text().startswith("[Service]")


def test_what_others_can_change_is_not_run_as_root(tmp_path: Path) -> None:
    open_place = tmp_path / "open"
    open_place.mkdir()
    open_place.chmod(0o777)
    (open_place / "steward").touch()
    with pytest.raises(Invalid, match="others can change"):
        check_trusted(open_place / "steward")


def test_a_link_to_what_others_can_change_is_seen_through(tmp_path: Path) -> None:
    open_place = tmp_path / "open"
    open_place.mkdir()
    open_place.chmod(0o777)
    (tmp_path / "steward").symlink_to(open_place / "steward")
    (open_place / "steward").touch()
    with pytest.raises(Invalid, match="others can change"):
        check_trusted(tmp_path / "steward")


def test_a_link_that_others_can_change_is_not_followed_as_root(tmp_path: Path) -> None:
    open_place = tmp_path / "open"
    open_place.mkdir()
    open_place.chmod(0o777)
    (open_place / "steward").symlink_to("/bin/sh")
    (tmp_path / "steward").symlink_to(open_place / "steward")
    for link in (open_place / "steward", tmp_path / "steward"):
        with pytest.raises(Invalid, match="others can change"):
            check_trusted(link)


def test_what_is_roots_alone_may_be_run() -> None:
    check_trusted(Path("/bin/sh"))


def test_the_program_is_found_again_from_anywhere() -> None:
    assert program("steward", {"LAUNCHED_STEWARD": "/usr/local/bin/steward"}) == [
        "/usr/local/bin/steward"
    ]
    assert program("/x/daemon/__main__.py", {}) == [sys.executable, "-m", "daemon"]
    assert program("bin/steward", {}) == [f"{os.getcwd()}/bin/steward"]


def test_a_program_with_an_odd_name_is_spelled_as_systemd_reads_it() -> None:
    assert "ExecStart='/opt/100%% $$mine/steward' agent\n" in unit_text(["/opt/100% $mine/steward"])


def test_every_line_of_the_unit_is_explained() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    service = unit_text([]).partition("[Service]")[2].partition("[Install]")[0]
    names = set(re.findall(r"^(\w+)=", service, re.MULTILINE))
    assert {name for name in names if f"`{name}" not in docs} == set()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "steward.service"
    unit.write_text(unit_text(["/bin/sh"]))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if f"{unit.name}:" in line] == []
