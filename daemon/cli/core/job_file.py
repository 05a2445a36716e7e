"""Job files. The client reads them, because it has the user's files and environment variables.

A file is in the job file language (HCL, or its JSON form). Or it holds a job in the API's form:
JSON, either `{"Job": {...}}` or the job alone. A file with the extension `.yaml` or `.yml` is
converted to JSON with the same values, and that JSON is submitted.
"""

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from daemon.cli.core.http_client import ApiClient, RequestRejected
from daemon.cli.core.options import Command, is_given_on_command_line
from storage.errors import Invalid
from storage.records.base import Record

if TYPE_CHECKING:
    from yaml import MappingNode
    from yaml import Node as YamlNode

    from daemon.jobspec.parse import JobFile

_ENVIRONMENT = ("NOMAD_VAR_", "STEWARD_VAR_")  # the later prefix wins
# Top-level names of the job file language; any other name means the API's form.
_OF_THE_LANGUAGE = frozenset({"job", "variable", "variables", "locals"})
_OF_A_JOB = frozenset({"id", "name", "taskgroups"})

_YAML = (".yaml", ".yml")
_YAML_TAG = "tag:yaml.org,2002:"
_YAML_TEXT = f"{_YAML_TAG}str"
_NUMBERS = (f"{_YAML_TAG}int", f"{_YAML_TAG}float")
_NOT_IN_JSON = tuple(f"{_YAML_TAG}{kind}" for kind in ("binary", "omap", "pairs", "set"))
_MOST_VALUES = 200_000  # the daemon's limit for JSON

_Json = dict[str, object]


class VariableArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line options for the variables of a job file."""

    var: tuple[str, ...] = ()
    var_file: tuple[str, ...] = ()
    hcl2_strict: bool = True
    hcl1: bool = False


def with_variables(command: Command) -> Command:
    """Add the options of a job file to a command, and pass them as `variables`."""

    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        settings = {field: options.pop(field) for field in VariableArguments.__struct_fields__}
        return command(*args, variables=msgspec.convert(settings, VariableArguments), **options)

    wrapped: Command = call
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_OPTIONS: Sequence[Callable[[Command], Command]] = (
    click.option("--var", multiple=True, metavar="NAME=VALUE", help="Value of a variable."),
    click.option(
        "--var-file", multiple=True, metavar="FILE", help="File with values of variables."
    ),
    click.option(
        "--hcl2-strict",
        type=bool,
        default=True,
        metavar="BOOL",
        help="Reject values for undeclared variables [default: true].",
    ),
    click.option("--hcl1", is_flag=True, help="Accept HCL version 1."),
)


def read_source(file: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises `Invalid`."""
    try:
        # Line breaks stay unchanged, because they are part of the value in a heredoc.
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise Invalid(f"cannot read the job file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"the job file {file} is not text in UTF-8: {error}") from error


def registration(source: str, file: str, variable_arguments: VariableArguments) -> _Json:
    """Return the request that registers the job of a job file. It includes the file's text.

    Raises `Invalid`, which names the positions of errors.
    """
    if file.endswith(_YAML):
        source = _json_of_yaml(source, file)
    if _is_json(source, file):
        request = _request(source, file)
        if request is not None:
            _check(request.get("Job"), file)
            return {**request, "Submission": {"Source": source, "Format": "json"}}
    read = _read(source, file, variable_arguments)
    job = _parsed(read)
    _check(job, file, "" if variable_arguments.hcl1 or _is_json(source, file) else source)
    return {"Job": job, "Submission": _submission(read)}


def _check(job: object, file: str, text: str = "") -> None:
    from daemon.cli.core.job_check import check  # slow to import, and most commands do not need it

    check(job, file, text)


def namespace_of(client: ApiClient, job: object) -> str:
    """Return the namespace: from the command line, else the file, else the environment."""
    named = msgspec.convert(job, dict[str, object]).get("Namespace")
    return "" if named and not is_given_on_command_line("namespace") else client.namespace


def examine(client: ApiClient, job: object) -> tuple[list[str], list[str]]:
    """Return the reasons why a job can never run, and the reasons why it cannot run now.

    If the daemon rejects the request, both lists are empty: the next request reports the error.
    """
    try:
        answer = client.send(
            "POST",
            "/v1/validate/job/examine",
            {"Job": job},
            namespace=namespace_of(client, job),
        )
    except RequestRejected:
        return [], []
    examination = answer.decode(_Examination)
    return examination.errors, examination.warnings


def check_prospects(client: ApiClient, job: object, warn: Callable[[str], None]) -> None:
    """Warn if a job cannot run now. Raises `Invalid` if it can never run."""
    errors, warnings = examine(client, job)
    if errors:
        raise Invalid("this job cannot run:\n" + "\n".join(f"- {error}" for error in errors))
    for warning in warnings:
        warn(f"Warning: {warning}")


class _Examination(Record, frozen=True):
    errors: list[str]
    warnings: list[str]


def launches_children(job: object) -> bool:
    """Return whether a job is periodic or parameterized, so only its children have tasks."""
    value = msgspec.convert(job, dict[str, object])
    return any(value[name] for name in value if name.lower() in ("periodic", "parameterizedjob"))


# --- the API's form ---


def _is_json(source: str, file: str) -> bool:
    return file.endswith((".json", *_YAML)) or source.lstrip().startswith("{")


def _json_of_yaml(source: str, file: str) -> str:
    """Return the JSON with the values of a YAML file. Raises `Invalid`."""
    import yaml  # slow to import, and most commands do not need it

    loader = yaml.SafeLoader(source)
    try:
        node = loader.get_single_node()
        if node is None:
            return "null"
        _check_nodes(node)
        _check_size(node)
        return json.dumps(loader.construct_document(node), allow_nan=False)
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or "this is not YAML"
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        if problem.startswith("but "):
            problem = f"{error.context} {problem}"
        raise Invalid(f"{file}{position}: {problem}") from error
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise Invalid(f"{file} cannot be read as YAML: {error}") from error


def _check_nodes(root: "YamlNode") -> None:
    """Check all nodes, and convert the keys and times of a file to text, as JSON requires.

    Raises `MarkedYAMLError` for a type that JSON does not have, and for a repeated key in a mapping,
    because a value would be lost.
    """
    import yaml

    waiting, seen = [root], set[int]()  # an alias is the same node again
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.tag in _NOT_IN_JSON:
            tag = node.tag.replace(_YAML_TAG, "!!")
            raise yaml.MarkedYAMLError(
                problem=f"the type {tag} does not exist in JSON: write a text, a list or a mapping",
                problem_mark=node.start_mark,
            )
        if isinstance(node, yaml.ScalarNode):
            # YAML 1.1 reads 22:00 as the number 1320.
            if node.tag == f"{_YAML_TAG}timestamp" or (node.tag in _NUMBERS and ":" in node.value):
                node.tag = _YAML_TEXT
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node)
            waiting += (part for pair in node.value for part in pair)


def _check_keys(mapping: "MappingNode") -> None:
    import yaml

    names = set[str]()
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.tag != f"{_YAML_TAG}merge":
            key.tag = _YAML_TEXT  # not the boolean that YAML 1.1 reads in `on`
        if key.value in names:
            problem = f"the key {key.value!r} is repeated"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        names.add(key.value)


def _check_size(root: "YamlNode") -> None:
    """Raise `ValueError` if the aliases of a file stand for too many values."""
    import yaml

    sizes = dict[int, int]()

    def size(node: "YamlNode") -> int:
        if (stored_size := sizes.get(id(node))) is not None:
            return stored_size
        sizes[id(node)] = 1  # if an alias is inside its value; such a file is refused later
        parts: Iterable[YamlNode] = ()
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = (value for _, value in node.value)
        sizes[id(node)] = total = 1 + sum(size(part) for part in parts)
        return total

    if size(root) > _MOST_VALUES:
        raise ValueError(f"with its aliases, it has more than {_MOST_VALUES} values")


def _request(source: str, file: str) -> _Json | None:
    """Return the request in a JSON file; None if the file is in the job file language."""
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
    """Return whether a JSON object is a job file in the JSON form of HCL.

    Each key of such an object is a type of top-level block, and `job` maps the job's name to the
    job.
    """
    job = document.get("job")
    names = {name.lower() for name in job} if isinstance(job, dict) else set()
    return "job" in document and document.keys() <= _OF_THE_LANGUAGE and not names & _OF_A_JOB


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a number"


# --- the job file language ---


def _read(source: str, file: str, variable_arguments: VariableArguments) -> "JobFile":
    """Return the job file with the values from the command line, files and the environment."""
    from daemon.jobspec.parse import JobFile  # slow to import, and most commands do not need it

    return JobFile(
        text=source,
        name=file,
        variable_files=tuple([(name, read_source(name)) for name in variable_arguments.var_file]),
        flags=_flags(variable_arguments.var),
        environment=_from_environment(os.environ),
        is_v1=variable_arguments.hcl1,
        is_strict=variable_arguments.hcl2_strict,
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
    from daemon.cli.core.file_functions import functions
    from daemon.jobspec.hcl.scope import FunctionEnvironment
    from daemon.jobspec.hcl.source import HclError
    from daemon.jobspec.parse import parse_job

    outside = FunctionEnvironment(
        random=secrets.token_bytes, files=functions(Path(file.name).parent)
    )
    try:
        return parse_job(file, outside)
    except HclError as error:
        if file.name.endswith(_YAML):  # the positions are those of the JSON, which no user wrote
            error = HclError(
                msgspec.structs.replace(diagnostic, source=None) for diagnostic in error.diagnostics
            )
        has_source = any(diagnostic.source for diagnostic in error.diagnostics)
        raise Invalid(
            error.explained() if has_source else f"{file.name}: {error.explained()}"
        ) from error


def _submission(file: "JobFile") -> _Json:
    """Return the file and its variables, so that the daemon can store and parse them again.

    Values from environment variables are stored like values of options, but options take
    precedence.
    """
    from daemon.jobspec.parse import environment_used

    return {
        "Source": file.text,
        "Format": "hcl1" if file.is_v1 else "hcl2",
        "VariableFlags": {**environment_used(file), **file.flags},
        "Variables": "\n".join(text for _, text in file.variable_files),
    }
