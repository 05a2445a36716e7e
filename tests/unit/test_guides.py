"""Guides and explanations are correct: valid commands, valid job files and valid links.

`tests/service/test_tutorial.py` executes the tutorial; this module checks the other pages.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from daemon.__main__ import command_line
from daemon.acl import policy_rules
from daemon.config.loading import load_settings
from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.validate import validate
from daemon.text.option_syntax import normalize_options, short_option
from daemon.version import VERSION
from storage.records.notification import ReceiverKind
from tests.unit.jobspec import recorded
from tests.unit.jobspec.hcl.build import parse

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
GUIDES = sorted([*DOCS.glob("how-to/*.md"), *DOCS.glob("coming-from/*.md"), DOCS / "cluster.md"])


def blocks(page: Path, kind: str) -> Iterator[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return (text for about, text in found if about == kind)


COMMANDS = [
    pytest.param(line, id=f"{page.stem}: {line}")
    for page in GUIDES
    for text in blocks(page, "sh")
    for line in text.splitlines()
]
FILES = [
    pytest.param(text, id=f"{page.stem} {number}")
    for page in (*GUIDES, README)
    for number, text in enumerate(blocks(page, "hcl"))
]


@pytest.mark.parametrize("line", COMMANDS)
def test_command_of_a_guide_is_accepted(line: str) -> None:
    program, *typed = shlex.split(line)
    assert program == "steward"
    words = [short_option(word) for word in normalize_options(typed)]
    command: click.Command = command_line()
    context = click.Context(command, info_name="steward", **command.context_settings)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
        assert command is not None
    command.make_context("guide", words, parent=context).close()


SETTINGS = [
    pytest.param(text, id=f"{page.stem} {number}")
    for page in (*GUIDES, DOCS / "notifications.md")
    for number, text in enumerate(blocks(page, "toml"))
]


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_of_a_guide_are_accepted(text: str, tmp_path: Path) -> None:
    # The program of a command must exist on the host, so use a program that always exists.
    program = "/usr/local/bin/notify-mail"
    file = tmp_path / "steward.toml"
    file.write_text(text.replace(program, "/bin/true"))
    load_settings(file, {}, {})


def test_each_receiver_type_has_an_example() -> None:
    (page,) = [guide for guide in GUIDES if guide.stem == "get-notified-of-failures"]
    kinds = {
        notify_receiver["kind"]
        for text in blocks(page, "toml")
        for notify_receiver in tomllib.loads(text).get("notify_receivers", {}).values()
    }
    assert kinds == set(ReceiverKind)


@pytest.mark.parametrize("text", FILES)
def test_a_file_of_a_guide_is_valid(text: str) -> None:
    if not text.startswith("job "):
        policy_rules.parse_policy(text)
        return
    assert validate(canonicalize(recorded.document(parse(text)))).errors == ()


PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("[!n]*/*.md"), *ROOT.glob("*.md")])


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_link_has_a_target(page: Path) -> None:
    outside_of_code = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", outside_of_code):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`([\w.-]+/[\w./-]*)`", CONTRIBUTING.read_text())))
)
def test_every_path_of_contributing_exists(path: str) -> None:
    assert "NNNN" in path or (ROOT / path).exists()


@pytest.mark.parametrize(
    ("name", "path"), re.findall(r"`(\w+)` in\s`([\w./-]+)`", CONTRIBUTING.read_text())
)
def test_every_table_of_contributing_is_in_its_module(name: str, path: str) -> None:
    assert re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE)


def test_every_documented_benchmark_can_be_imported() -> None:
    pages = [*PAGES, CONTRIBUTING, *(ROOT / "bench").glob("*.md"), *(ROOT / "bench").glob("*.py")]
    text = "".join(page.read_text() for page in pages)
    # run as a file, a script would import bench/bench.py as `bench`
    assert re.findall(r"python bench/", text) == []
    names = sorted(set(re.findall(r"python -m (bench\.\w+)", text)))
    client = {"PYTHONPATH": str(ROOT / "packaging" / "client")}
    imports = f"import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", imports], cwd=ROOT, env=os.environ | client, check=True)


def test_every_picture_is_used() -> None:
    text = "".join(page.read_text() for page in PAGES)
    unused = {
        path.name for path in (DOCS / "images").iterdir() if f"images/{path.name}" not in text
    }
    assert unused == set()


def test_newest_changelog_release_is_the_program_version() -> None:
    releases = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == VERSION
