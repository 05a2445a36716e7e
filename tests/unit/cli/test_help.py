"""The help of every command: what it does, and an example that the command takes."""

import shlex
from collections.abc import Iterator

import click
import pytest

from daemon.__main__ import command_line
from daemon.dashes import short_option, two_dashes

# These speak with a terminal, hand on what a program prints, or set up this machine.
WITHOUT_JSON = {
    "agent",
    "alloc exec",
    "exec",
    "install",
    "job action",
    "operator api",
    "operator metrics",
    "operator rekey",
    "policy fmt",
    "uninstall",
    "var lock",
}


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, *above, name)
        else:
            yield " ".join((*above, name)), found


ALL = dict(commands(command_line()))


@pytest.mark.parametrize("name", ALL)
def test_every_help_has_an_example_that_is_taken(name: str) -> None:
    about, _, example = (ALL[name].help or "").partition("Example: steward ")
    assert about.strip()
    words = [short_option(word) for word in two_dashes(shlex.split(example))]
    command: click.Command = command_line()
    context = click.Context(command, info_name="steward", **command.context_settings)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
    assert command is ALL[name]
    command.make_context(
        "example", words, parent=context
    ).close()  # raises for what it does not take


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_JSON))
def test_every_answer_may_be_json(name: str) -> None:
    assert "--json" in {word for parameter in ALL[name].params for word in parameter.opts}


def test_a_part_of_a_document_is_chosen_by_two_names() -> None:
    assert {"-t", "--field"} <= {word for one in ALL["job status"].params for word in one.opts}
