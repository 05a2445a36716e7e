"""`job init`, `job validate` and `fmt`: help with writing job files."""

import difflib
import sys
from importlib import resources
from pathlib import Path

import click

from daemon.cli.commands.child_jobs import show_upcoming
from daemon.cli.core.http_client import ApiClient, flat
from daemon.cli.core.job_file import (
    VariableArguments,
    examine,
    namespace_of,
    read_source,
    registration,
    with_variables,
)
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import ValidateResult
from storage.errors import Invalid

DEFAULT_FILE = "example.hcl"
EXIT_DIFFERS = 1


@click.command()
@click.argument("file", default=DEFAULT_FILE)
@click.option("--short", is_flag=True, help="Leave the explanations out.")
@with_output
def init(screen: Screen, file: str, *, short: bool) -> int:
    """Write an example job file to FILE, which must not exist; with -, to standard output.

    Example: steward job init -short web.hcl
    """
    name = "short.hcl" if short else "full.hcl"
    example = resources.files("daemon.cli").joinpath("examples", name).read_text(encoding="utf-8")
    if file == "-":
        if screen.wants_document:
            raise Invalid(
                'with "-" as FILE, the job file itself is printed: leave out -json and -t'
            )
        click.echo(example, nl=False)
        return 0
    try:
        with Path(file).open("x", encoding="utf-8") as written:
            written.write(example)
    except FileExistsError as error:
        raise Invalid(f"{file} exists already; name another file") from error
    except OSError as error:
        raise Invalid(f"cannot write {file}: {error.strerror}") from error
    screen.report(f"Example job file written to {file}")
    screen.hint(f"Run it with: steward job run {file}")
    return 0


@click.command()
@click.argument("file")
@with_variables
@with_output
@with_client
def validate(client: ApiClient, screen: Screen, file: str, *, variables: VariableArguments) -> int:
    """Check the job in FILE (- reads standard input), without running it.

    The exit status is 0 if the job is valid, 1 otherwise.

    Example: steward job validate web.hcl
    """
    job = registration(read_source(file), file, variables)["Job"]
    answer = client.send(
        "POST", "/v1/validate/job", {"Job": job}, namespace=namespace_of(client, job), launches=True
    )
    validated = answer.decode(ValidateResult)
    errors, dubious = ([], []) if validated.error else examine(client, job)
    for warning in dubious:
        screen.warn(f"Warning: {warning}")
    if validated.warnings:
        screen.warn(validated.warnings.rstrip())
    if screen.wants_document:
        screen.document(answer.body)
    elif validated.error:
        screen.warn(flat(validated.error).rstrip())
    elif errors:
        screen.warn("\n".join(errors))
    else:
        screen.line("Job validation successful")
        show_upcoming(screen, validated.next_periodic_launches)
    return 1 if validated.error or errors else 0


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--check", is_flag=True, help="Change nothing; show the changes.")
@with_output
def fmt(screen: Screen, files: tuple[str, ...], *, check: bool) -> int:
    """Format job files and variable files.

    With -, the command reads standard input and prints the result. With --check, the exit status is
    1 if a file is not formatted.

    Example: steward fmt -check web.hcl
    """
    differs = False
    for file in files:
        before = read_source(file)
        after = _formatted(before, file)
        differs = differs or before != after
        if check:
            _show_difference(screen, before, after, file)
        elif file == "-":
            sys.stdout.write(after)
        elif before != after:
            Path(file).write_bytes(after.encode())
            screen.line(file)
    return EXIT_DIFFERS if check and differs else 0


def _formatted(source: str, file: str) -> str:
    from daemon.jobspec.hcl.format import formatted
    from daemon.jobspec.hcl.source import HclError, SourceText

    try:
        return formatted(SourceText(file, source))
    except HclError as error:
        raise Invalid(error.explained()) from error


def _show_difference(screen: Screen, before: str, after: str, file: str) -> None:
    lines = (before.splitlines(), after.splitlines())
    for line in difflib.unified_diff(*lines, file, f"{file} (canonical)", lineterm=""):
        screen.line(line)
