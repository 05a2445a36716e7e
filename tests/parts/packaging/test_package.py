"""The Debian package: its files, and those generated from the documentation and the commands."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import msgspec
import pytest

from daemon.__main__ import command_line
from daemon.config.settings import FIELDS, Settings
from tests.parts.packaging.test_environment import ROOT

DEB = ROOT / "packaging" / "deb"
SETTINGS = ROOT / "docs" / "configuration.md"


def made(script: str, *words: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-B", DEB / script, *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_settings_file_lists_the_defaults_as_comments() -> None:
    text = made("settings.py", SETTINGS)
    assert tomllib.loads(text) == {}
    shown = tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE))
    of_development = {"dev", "dev_cloud", "dev_cloud_port", "acl", "ask_passphrase"}
    assert shown.keys() == FIELDS.keys() - of_development
    usual = msgspec.to_builtins(
        Settings(), enc_hook=lambda path: str(path) if path != Path() else ""
    )
    # Settings whose default depends on development mode are off in a service.
    assert shown == {name: False if usual[name] is None else usual[name] for name in shown}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("man")
    made("manuals.py", target, SETTINGS)
    return target


def names(command: click.Command, words: str, context: click.Context) -> set[str]:
    """Return the names of the manual pages of a command and of all its subcommands."""
    if not isinstance(command, click.Group):
        return {words}
    below = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return {words}.union(*(names(one, f"{words}-{name}", context) for name, one in below if one))


def test_every_command_has_a_page(pages: Path) -> None:
    cli = command_line()
    found = {path.stem for path in (pages / "man1").iterdir()}
    assert found == names(cli, "steward", click.Context(cli))


def test_manual_page_matches_the_help_of_the_command(pages: Path) -> None:
    text = (pages / "man1" / "steward-job-run.1").read_text()
    assert text.startswith(".TH STEWARD-JOB-RUN 1 ")
    assert ".SH SYNOPSIS\n.B steward job run\n[OPTIONS] FILE\n" in text
    assert ".TP\n.B \\-\\-check\\-index N\nFail unless the job is at index N.\n" in text
    assert "job \\-\n" not in text


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_manual_pages_have_no_formatter_warnings(pages: Path) -> None:
    for page in [pages / "man5" / "steward.toml.5", *sorted((pages / "man1").iterdir())[::20]]:
        words = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_package_scripts_are_valid(script: str) -> None:
    subprocess.run(["sh", "-n", DEB / "scripts" / script], check=True)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_package_has_every_required_file(tmp_path: Path) -> None:
    tree, bill = tmp_path / "tree", tmp_path / "bill"
    tree.mkdir()
    shutil.copy("/bin/true", tree / "steward")
    bill.write_text("{}")
    subprocess.run([DEB / "make", sys.executable, tree, bill, tmp_path], check=True)
    (package,) = tmp_path.glob("steward_*.deb")
    listed = subprocess.run(
        ["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True
    ).stdout
    for path in (
        "usr/bin/steward -> ../lib/steward/steward",
        "lib/systemd/system/steward.service",
        "lib/systemd/system/steward-tasks.service",
        "lib/systemd/system/steward.socket",
        "etc/steward/steward.toml",
        "usr/lib/sysusers.d/steward.conf",
        "usr/lib/tmpfiles.d/steward.conf",
        "usr/share/man/man1/steward-job-run.1.gz",
        "usr/share/man/man5/steward.toml.5.gz",
        "usr/share/bash-completion/completions/steward",
        "usr/share/zsh/vendor-completions/_steward",
        "usr/share/fish/vendor_completions.d/steward.fish",
        "usr/share/doc/steward/steward.cdx.json",
    ):
        assert f" ./{path}\n" in listed
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    control = tmp_path / "control"
    subprocess.run(["dpkg-deb", "--control", package, control], check=True)
    assert (control / "conffiles").read_text() == "/etc/steward/steward.toml\n"
    assert re.search(
        r"^Depends: libc6 \(>= 2\.\d+\)", (control / "control").read_text(), re.MULTILINE
    )
