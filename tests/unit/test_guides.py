"""Guides and explanations say what works: commands that are taken, job files that are valid, links that lead somewhere.

What the tutorial says is run (`tests/service/test_tutorial.py`); here is looked at what the other pages say.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from daemon.__main__ import command_line
from daemon.acl import policies
from daemon.dashes import short_option, two_dashes
from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.validate import validate
from tests.unit.jobspec import golden
from tests.unit.jobspec.hcl.build import parse

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
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
def test_a_command_of_a_guide_is_taken(line: str) -> None:
    program, *typed = shlex.split(line)
    assert program == "steward"
    words = [short_option(word) for word in two_dashes(typed)]
    command: click.Command = command_line()
    context = click.Context(command, info_name="steward", **command.context_settings)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
        assert command is not None
    command.make_context("guide", words, parent=context).close()


@pytest.mark.parametrize("text", FILES)
def test_a_file_of_a_guide_is_valid(text: str) -> None:
    if not text.startswith("job "):
        policies.parse(text)
        return
    assert validate(canonicalize(golden.document(parse(text)))).errors == ()


PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("[!n]*/*.md"), README])


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_link_leads_somewhere(page: Path) -> None:
    outside_of_code = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", outside_of_code):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
