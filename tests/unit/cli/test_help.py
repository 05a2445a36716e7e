"""The help of every command: a description, and an example that the command accepts."""

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from daemon.__main__ import command_line
from daemon.cli.core.help import sections
from daemon.text.option_syntax import normalize_options, short_option

# Commands that use a terminal, forward the output of a program, or configure the host.
WITHOUT_JSON = {
    "agent",
    "alloc exec",
    "completion",
    "exec",
    "help",
    "install",
    "job action",
    "mcp",
    "operator api",
    "operator metrics",
    "operator rekey",
    "policy fmt",
    "top",
    "uninstall",
    "var lock",
}


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command


ALL = dict(commands(command_line()))


@pytest.mark.parametrize("name", ALL)
def test_every_help_has_a_valid_example(name: str) -> None:
    about, _, example = (ALL[name].help or "").partition("Example: steward ")
    assert about.strip()
    words = [short_option(word) for word in normalize_options(shlex.split(example))]
    command: click.Command = command_line()
    context = click.Context(command, info_name="steward", **command.context_settings)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
    assert command is ALL[name]
    command.make_context(
        "example", words, parent=context
    ).close()  # raises an error for invalid arguments


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_JSON))
def test_every_command_can_print_json(name: str) -> None:
    assert "--json" in {word for parameter in ALL[name].params for word in parameter.opts}


def test_part_of_a_document_is_selected_by_two_options() -> None:
    assert {"-t", "--field"} <= {word for param in ALL["job status"].params for word in param.opts}


def groups(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Group]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        if isinstance(command := group.get_command(context, name), click.Group):
            yield from groups(command, f"{path} {name}".lstrip())


GROUPS = dict(groups(command_line()))


@pytest.mark.parametrize("path", GROUPS)
def test_every_command_has_an_untruncated_summary(path: str) -> None:
    listed = [name for lines in sections(path).values() for name in lines]
    group = GROUPS[path]
    assert sorted(listed) == sorted(group.list_commands(click.Context(group)))
    help_lines = typed("help", *path.split()).stdout.splitlines()
    for lines in sections(path).values():
        for name, line in lines.items():
            assert any(help_line.split(None, 1) == [name, line] for help_line in help_lines)


def typed(*words: str) -> Result:
    return CliRunner().invoke(command_line(), list(words), prog_name="steward", terminal_width=80)


def test_main_help_has_its_groups_in_order() -> None:
    shown = typed("--help").stdout
    assert typed("help").stdout == typed().stdout == shown
    titles = [line.rstrip(":") for line in shown.splitlines() if line.endswith(":")]
    assert titles == ["Options", "Run and watch", "Inspect", "Change", "Access", "Operate"]


def test_help_of_a_command_is_that_of_its_option() -> None:
    assert typed("help", "job", "run").stdout == typed("job", "run", "--help").stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["jbo"], "no command 'jbo'; did you mean 'job'?"),
        (["job", "rnu"], "no command 'rnu'; did you mean 'run'?"),
        (["run", "x"], "'run' has no subcommands"),
    ],
)
def test_help_of_a_mistyped_command_suggests_the_nearest(words: list[str], complaint: str) -> None:
    result = typed("help", *words)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"steward: {complaint}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    result = typed("completion", shell)
    assert result.exit_code == 0
    assert f"_STEWARD_COMPLETE={shell}_complete" in result.stdout


def test_completion_names_supported_shells() -> None:
    result = typed("completion", "tcsh")
    assert result.exit_code == 1
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.stderr
