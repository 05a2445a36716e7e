"""Boolean options with a value, in the syntax of Go's flag package, for every command."""

import click
import pytest
from click.testing import CliRunner, Result

from daemon.__main__ import command_line
from daemon.cli.core.boolean_options import with_boolean_values
from daemon.cli.core.command_tree import CommandLine
from daemon.text.option_syntax import normalize_options, short_option
from tests.unit.cli.test_help import ALL

GROUP = click.Context(command_line(), **command_line().context_settings)
FLAGS = [
    (name, option, spelling)
    for name, command in ALL.items()
    for option in command.get_params(click.Context(command, parent=GROUP))
    if isinstance(option, click.Option) and option.is_flag
    for spelling in (*option.opts, *option.secondary_opts)
]


def words(*typed: str) -> list[str]:
    return [short_option(word) for word in normalize_options(list(typed))]


def value_of(name: str, option: click.Option, *typed: str) -> object:
    """Return the value of an option of a command, as the parser stores it."""
    command = ALL[name]
    arguments = with_boolean_values(command, words(*typed), GROUP)
    context = click.Context(command, parent=GROUP, resilient_parsing=True)
    found, _, _ = command.make_parser(context).parse_args(arguments)
    return found.get(str(option.name))


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_every_boolean_option_of_every_command_accepts_a_value(dashes: str) -> None:
    assert len({name for name, _, _ in FLAGS}) > 80
    for name, option, spelling in FLAGS:
        flag = f"{dashes}{spelling.lstrip('-')}"
        alone = value_of(name, option, flag)
        for text in ("true", "1", "t", "T", "TRUE", "True"):
            assert value_of(name, option, f"{flag}={text}") == alone, (name, flag, text)
        for text in ("false", "0", "f", "F", "FALSE", "False"):
            value = value_of(name, option, f"{flag}={text}")
            # `-force-color=false` leaves the choice to the default, as in Nomad.
            is_switch = option.is_bool_flag and spelling != "--force-color"
            is_switch &= spelling in option.opts
            assert value == (False if is_switch else None), (name, flag, text)


def probe(*typed: str, environment: dict[str, str] | None = None) -> Result:
    """Print the options of a command that has each kind of boolean option."""

    @click.command("try", context_settings={"allow_interspersed_args": False})
    @click.option("-t/--no-tty", "--tty", "tty", default=None)
    @click.option("--detach", is_flag=True, envvar="DETACH")
    @click.option("--stderr", "kind", flag_value="stderr")
    @click.option("-n", "--number", default="")
    @click.argument("command", nargs=-1)
    def function(command: tuple[str, ...], **options: object) -> None:
        click.echo(" ".join(str(options[name]) for name in ("tty", "detach", "kind", "number")))
        click.echo(" ".join(map(str, command)))

    line = CommandLine("steward", {}, "")
    line.add_command(function)
    return CliRunner().invoke(line, ["try", *normalize_options(list(typed))], env=environment)


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        (["-t=false"], "False False None \n\n"),
        (["-t=true"], "True False None \n\n"),
        (["-tty=0"], "False False None \n\n"),
        (["--tty=1"], "True False None \n\n"),
        (["-no-tty=true"], "False False None \n\n"),
        (["-no-tty=false"], "None False None \n\n"),
        (["-detach=T"], "None True None \n\n"),
        (["-detach", "-detach=f"], "None False None \n\n"),
        (["-detach=f", "-detach"], "None True None \n\n"),
        (["-stderr=t"], "None False stderr \n\n"),
        (["-stderr=false"], "None False None \n\n"),
        (["-n=5"], "None False None 5\n\n"),
        (["-number", "-t=false"], "None False None -t=false\n\n"),
        (["ls", "-t=false", "--detach=1"], "None False None \nls -t=false --detach=1\n"),
        (["--", "-t=false"], "None False None \n-t=false\n"),
    ],
)
def test_value_of_a_boolean_option(typed: list[str], printed: str) -> None:
    assert probe(*typed).output == printed


def test_false_overrides_the_environment() -> None:
    assert probe("-detach=false", environment={"DETACH": "1"}).output.startswith("None False")
    assert probe(environment={"DETACH": "1"}).output.startswith("None True")


@pytest.mark.parametrize("text", ["maybe", "2", "-1"])
def test_another_value_is_refused_with_the_name_of_the_option(text: str) -> None:
    done = probe(f"-detach={text}")
    assert done.exit_code == 1
    assert f"'--detach': '{text}' is not a valid boolean" in done.output


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("-version=true", "Steward v"),
        ("-help=1", "Usage: "),
        ("version -h=t", "Usage: "),
        ("version -help=false", "Steward v"),
    ],
)
def test_options_for_help_and_version_accept_a_value(typed: str, shown: str) -> None:
    assert CliRunner().invoke(command_line(), words(*typed.split())).output.startswith(shown)
