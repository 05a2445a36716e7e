"""Job files: read where the user is, so that variables, files and mistakes are the user's own.

A file is in the language of job files (HCL, or its JSON form), or it holds the job as the API has
it: JSON, either `{"Job": {...}}` or the job alone.
"""

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from daemon.cli.client import Client
from daemon.cli.options import Command, asked_for
from storage.errors import Invalid

if TYPE_CHECKING:
    from daemon.jobspec.parse import JobFile

_ENVIRONMENT = ("NOMAD_VAR_", "STEWARD_VAR_")  # the later one wins
# Names that only the API's form has at its top, and those that the language has there.
_OF_THE_LANGUAGE = frozenset({"job", "variable", "variables", "locals"})
_OF_A_JOB = frozenset({"id", "name", "taskgroups"})

_Json = dict[str, object]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the variables of a job file, and how to read it."""

    var: tuple[str, ...] = ()
    var_file: tuple[str, ...] = ()
    hcl2_strict: bool = True
    hcl1: bool = False


def with_variables(command: Command) -> Command:
    """Give a command the options of a job file, and `given` instead of them."""

    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        settings = {field: options.pop(field) for field in Given.__struct_fields__}
        return command(*args, given=msgspec.convert(settings, Given), **options)

    wrapped: Command = call
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_OPTIONS: Sequence[Callable[[Command], Command]] = (
    click.option("--var", multiple=True, metavar="NAME=VALUE", help="Value of a variable."),
    click.option("--var-file", multiple=True, metavar="FILE", help="File with such values."),
    click.option(
        "--hcl2-strict",
        type=bool,
        default=True,
        metavar="BOOL",
        help="Refuse values for variables that the file does not declare [default: true].",
    ),
    click.option("--hcl1", is_flag=True, help="Accept the old syntax."),
)


def read_source(file: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises `Invalid`."""
    try:
        # Newlines stay as they are: in a heredoc they belong to the value.
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise Invalid(f"cannot read the job file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"the job file {file} is not text in UTF-8: {error}") from error


def registration(source: str, file: str, given: Given) -> _Json:
    """Return the request for a job file, with the file itself as its submission.

    Raises `Invalid`, which names the places where the file is wrong.
    """
    if _is_json(source, file):
        request = _request(source, file)
        if request is not None:
            return {**request, "Submission": {"Source": source, "Format": "json"}}
    read = _read(source, file, given)
    return {"Job": _parsed(read), "Submission": _submission(read)}


def namespace_of(client: Client, job: object) -> str:
    """Return the namespace to send: what the command line says, then the file, then the variable."""
    named = msgspec.convert(job, dict[str, object]).get("Namespace")
    return "" if named and not asked_for("namespace") else client.namespace


def launches_children(job: object) -> bool:
    """Tell whether a job has no tasks of its own to wait for: it is periodic or parameterized."""
    given = msgspec.convert(job, dict[str, object])
    return any(given[name] for name in given if name.lower() in ("periodic", "parameterizedjob"))


# ---- the API's form ----------------------------------------------------------------------------------


def _is_json(source: str, file: str) -> bool:
    return file.endswith(".json") or source.lstrip().startswith("{")


def _request(source: str, file: str) -> _Json | None:
    """Return the request that a JSON file is or holds; None when it is in the language's form."""
    try:
        document: object = json.loads(source)
    except json.JSONDecodeError as error:
        raise Invalid(
            f"{file}, line {error.lineno}, column {error.colno}: {error.msg}; "
            'as JSON, a job file holds either {"Job": {...}} or the job alone'
        ) from error
    except RecursionError:
        raise Invalid(f"{file} is nested too deeply for a job file") from None
    if not isinstance(document, dict):
        raise Invalid(
            f"{file} holds {_kind(document)}, not a job; "
            'write {"Job": {...}} or the job alone, as an object'
        )
    if _is_of_the_language(document):
        return None
    wrapper = {"Job" if name.lower() == "job" else name: part for name, part in document.items()}
    if "Job" not in wrapper:
        return {"Job": document}
    if not isinstance(wrapper["Job"], dict):
        raise Invalid(f'{file}: "Job" holds {_kind(wrapper["Job"])}; it must be an object')
    return wrapper


def _is_of_the_language(document: _Json) -> bool:
    """Tell whether an object has blocks at its top, and its job is named by a label."""
    job = document.get("job")
    names = {name.lower() for name in job} if isinstance(job, dict) else set()
    return "job" in document and document.keys() <= _OF_THE_LANGUAGE and not names & _OF_A_JOB


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a number"


# ---- the language ------------------------------------------------------------------------------------


def _read(source: str, file: str, given: Given) -> "JobFile":
    """Return a job file with what the command line, files and the environment give to it."""
    from daemon.jobspec.parse import JobFile  # slow to import, and useless to most commands

    return JobFile(
        text=source,
        name=file,
        variable_files=tuple([(name, read_source(name)) for name in given.var_file]),
        flags=_flags(given.var),
        environment=_from_environment(os.environ),
        is_v1=given.hcl1,
        is_strict=given.hcl2_strict,
    )


def _flags(words: Sequence[str]) -> dict[str, str]:
    flags = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise Invalid(f"-var {word}: write -var {word}=VALUE")
        flags[name.strip()] = value
    return flags


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(prefix): value
        for prefix in _ENVIRONMENT
        for name, value in environment.items()
        if name.startswith(prefix)
    }


def _parsed(file: "JobFile") -> object:
    from daemon.cli.filefunctions import functions
    from daemon.jobspec.hcl.scope import Outside
    from daemon.jobspec.hcl.source import Faulty
    from daemon.jobspec.parse import parse_job

    outside = Outside(random=secrets.token_bytes, files=functions(Path(file.name).parent))
    try:
        return parse_job(file, outside)
    except Faulty as error:
        raise Invalid(error.explained()) from error


def _submission(file: "JobFile") -> _Json:
    """Return the file in the form in which it can be read back and parsed again.

    What came from the environment is kept like a flag, where nothing else gave a value.
    """
    from daemon.jobspec.parse import environment_used

    return {
        "Source": file.text,
        "Format": "hcl1" if file.is_v1 else "hcl2",
        "VariableFlags": {**environment_used(file), **file.flags},
        "Variables": "\n".join(text for _, text in file.variable_files),
    }
