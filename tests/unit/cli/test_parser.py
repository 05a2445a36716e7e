import errno

import click
import pytest
from click.testing import CliRunner, Result

from daemon.cli.core.command_tree import COMMANDS, CommandLine
from daemon.text.option_syntax import normalize_options, short_option
from storage.errors import NotFound


def command_line(function: object = None) -> CommandLine:
    made = CommandLine("steward", COMMANDS, "")
    if function is not None:
        made.add_command(click.command("try")(function))
    return made


def run(*arguments: str, function: object = None) -> Result:
    return CliRunner().invoke(command_line(function), list(arguments))


def fail(error: BaseException) -> object:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--f", "-f"),
        ("--n=5", "-n5"),
        ("--n5", "-n5"),
        ("--t=.ID", "-t.ID"),
        ("--json", "--json"),
        ("--address=x", "--address=x"),
        ("-f", "-f"),
        ("word", "word"),
    ],
)
def test_an_option_of_one_letter_has_one_dash(word: str, meant: str) -> None:
    assert short_option(word) == meant


@pytest.mark.parametrize(
    ("typed", "ran"),
    [
        (["-text", "-hello", "ls", "-la", "--d", "-e=5", "-n5"], "-hello ls -la --d -e=5 -n5"),
        (["--text=-hello", "ls", "-text"], "-hello ls -text"),
        (["-t", "--t", "ls", "--", "--d", "-text"], "--t ls -- --d -text"),
        (["--", "ls", "--d", "-abc"], "None ls --d -abc"),
    ],
)
def test_options_of_another_command_and_values_stay_as_typed(typed: list[str], ran: str) -> None:
    @click.command("try", context_settings={"allow_interspersed_args": False})
    @click.option("-t", "--text")
    @click.argument("command", nargs=-1)
    def function(text: str | None, command: tuple[str, ...]) -> None:
        click.echo(" ".join([str(text), *command]))

    line = command_line()
    line.add_command(function)
    result = CliRunner().invoke(line, normalize_options(["try", *typed]))
    assert (result.stdout, result.stderr) == (f"{ran}\n", "")


@pytest.mark.parametrize("words", ["exec", "var lock", "alloc exec"])
def test_unknown_option_before_the_command_of_a_task_is_an_error(words: str) -> None:
    typed = [*words.split(), "-nosuch", "name", "echo", "-hello"]
    result = CliRunner().invoke(command_line(), normalize_options(typed))
    assert (result.exit_code, "No such option '--nosuch'" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["jbo"], "steward: no command 'jbo'; did you mean 'job'?"),
        (["job", "statsu"], "steward: no command 'statsu'; did you mean 'status'?"),
        (
            ["node", "xyz"],
            "steward: no command 'xyz'; the commands are: drain, eligibility, meta, status",
        ),
        (["job", "run"], "steward: Missing argument 'FILE'."),
        (["version", "--jsn"], "steward: No such option"),
    ],
)
def test_mistyped_word_gets_a_suggestion(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert "See: steward" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["job"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (1, "")
    assert "Run and watch:" in result.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["job", "run", "-h"]])
def test_help_exits_successfully(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert "Usage: steward" in result.stdout


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (NotFound("no job is called 'x'"), 1, "steward: no job is called 'x'\n"),
        (click.ClickException("wrong"), 1, "steward: wrong\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.Abort(), 1, ""),
        (BrokenPipeError(errno.EPIPE, "nobody reads"), 1, ""),  # click's own choice
    ],
)
def test_every_outcome_has_its_exit_status(error: BaseException, status: int, said: str) -> None:
    result = run("try", function=fail(error))
    assert (result.exit_code, result.stderr) == (status, said)


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (2, 2)])
def test_return_value_of_a_command_is_its_exit_status(returned: int | None, status: int) -> None:
    assert run("try", function=lambda: returned).exit_code == status


def test_command_of_another_module_is_registered_by_name() -> None:
    made = command_line()
    made.add_lazily("also", "daemon.cli.commands.version:version")
    result = CliRunner().invoke(made, ["also"])
    assert result.stdout.startswith("Steward v")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_of_the_tree_exists_and_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0


@pytest.mark.parametrize("option", ["-v", "--version"])
def test_version_is_available_as_an_option(option: str) -> None:
    assert run(option).stdout == run("version").stdout


@pytest.mark.parametrize("name", ["inspect", "plan", "run", "status", "stop", "validate"])
def test_common_commands_need_no_group(name: str) -> None:
    _, of_jobs = COMMANDS["job"]
    assert isinstance(of_jobs, dict)
    assert COMMANDS[name] == of_jobs[name]
