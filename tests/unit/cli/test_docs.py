"""The documentation of the command line is complete."""

from pathlib import Path

import click
import pytest

from daemon.cli.core.command_tree import COMMANDS
from daemon.cli.core.options import _CONNECTION

DOCS = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()


GROUPS = {name: one[1] for name, one in COMMANDS.items() if not isinstance(one, str)}


@pytest.mark.parametrize(
    "command", [f"{group} {verb}" for group, tree in GROUPS.items() for verb in tree]
)
def test_every_command_is_documented(command: str) -> None:
    assert f"| `steward {command}" in DOCS


@pytest.mark.parametrize("verb", [name for name, one in COMMANDS.items() if isinstance(one, str)])
def test_every_short_form_is_documented(verb: str) -> None:
    assert f"`steward {verb}`" in DOCS


def settings() -> list[click.Option]:
    @click.command()
    def nothing() -> None: ...

    for option in _CONNECTION:
        nothing = option(nothing)
    return [parameter for parameter in nothing.params if isinstance(parameter, click.Option)]


@pytest.mark.parametrize("option", settings(), ids=lambda option: option.name)
def test_every_connection_setting_is_documented(option: click.Option) -> None:
    ours, theirs = option.envvar
    assert f"`-{option.opts[0].lstrip('-')}`" in DOCS
    assert f"`{ours}`" in DOCS
    assert theirs == ours.replace("STEWARD_", "NOMAD_")
