"""JSON and YAML in templates. No I/O."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.values import MissingValue, bounded, text_of
from storage.errors import Malformed
from storage.records import json_steps

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_READ = 4  # characters per step; a short text can hold many values
_WRITTEN_YAML = 20  # steps per value
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def parse_json(budget: StepBudget, document: object) -> object:
    """Parse a JSON text. Raises `TemplateError`."""
    text = text_of(document)
    budget.spend(1 + len(text) // _READ)
    if not text:
        return {}
    try:
        return _checked(json_steps.decode(text.encode()))
    except (Malformed, msgspec.DecodeError, UnicodeError) as error:
        raise TemplateError(str(error)) from error


def parse_yaml(budget: StepBudget, document: object) -> object:
    """Parse a YAML text. Raises `TemplateError`."""
    text = text_of(document)
    if not text:
        return {}
    from daemon.templates import yaml_reader  # a large library, and few templates read YAML

    return yaml_reader.read(budget, text)


def _checked(value: object) -> object:
    match value:
        case dict():
            return {key: _checked(member) for key, member in value.items()}
        case list():
            return [_checked(element) for element in value]
        case int() if not isinstance(value, bool):
            return bounded(value)
    return value


def to_json(budget: StepBudget, value: object) -> str:
    """Return a value as JSON on one line."""
    return _dumped(budget, value, None)


def to_json_pretty(budget: StepBudget, value: object) -> str:
    """Return a value as indented JSON."""
    return _dumped(budget, value, 2)


def to_unescaped_json(budget: StepBudget, value: object) -> str:
    """Return a value as JSON on one line, in which `<`, `>` and `&` are not escaped."""
    return _dumped(budget, value, None, escaped=False)


def to_unescaped_json_pretty(budget: StepBudget, value: object) -> str:
    """Return a value as indented JSON, in which `<`, `>` and `&` are not escaped."""
    return _dumped(budget, value, 2, escaped=False)


def _dumped(budget: StepBudget, value: object, indent: int | None, *, escaped: bool = True) -> str:
    plain = _plain(budget, value, 1)
    apart = (",", ":") if indent is None else (",", ": ")
    try:
        text = json.dumps(
            plain,
            ensure_ascii=False,
            allow_nan=False,
            sort_keys=True,
            indent=indent,
            separators=apart,
        )
    except ValueError as error:  # JSON has no infinity
        raise TemplateError(f"json: unsupported value: {error}") from error
    for char, escape in _HTML.items() if escaped else ():  # Go: safe inside HTML
        text = text.replace(char, escape)
    budget.make(len(text))
    return text


def to_yaml(budget: StepBudget, value: object) -> str:
    """Return a value as YAML."""
    import yaml  # a large library, and few templates output YAML

    plain = _plain(budget, value, _WRITTEN_YAML)
    text = str(
        yaml.dump(
            plain,
            Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
            allow_unicode=True,
            width=2**31 - 1,
        )
    )
    budget.make(len(text))
    return text.removesuffix("...\n").rstrip("\n")


def to_toml(budget: StepBudget, value: object) -> str:
    """Return a map as TOML. Raises `TemplateError` for another value."""
    plain = _plain(budget, value, _WRITTEN_YAML)
    if not isinstance(plain, dict):
        raise TemplateError("toml: only a map can be the top level of a document")
    text = "\n".join(_toml_lines(budget, plain, ""))
    budget.make(len(text))
    return text.strip("\n")


def _toml_lines(budget: StepBudget, table: Mapping[str, object], path: str) -> Iterator[str]:
    """Yield the lines of a table: first its values, then the tables in it."""
    margin = "  " * path.count("\n")
    names = sorted(name for name, value in table.items() if value is not None)
    for name in names:
        if not _tables(table[name]):
            yield f"{margin}{_toml_key(name)} = {_toml_value(table[name])}"
    for name in names:
        for member in _tables(table[name]):
            inner = f"{path}\n{_toml_key(name)}"
            budget.make(len(inner))
            full, is_list = ".".join(inner.split("\n")[1:]), isinstance(table[name], list)
            yield ""
            yield f"{margin}[[{full}]]" if is_list else f"{margin}[{full}]"
            yield from _toml_lines(budget, member, inner)


def _tables(value: object) -> Sequence[Mapping[str, object]]:
    """Return the tables that a value consists of; empty for any other value."""
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list) and value and all(isinstance(member, dict) for member in value):
        return value
    return []


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _toml_value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return f"{value:.1f}"
        case list():
            if None in value:
                raise TemplateError("toml: a list cannot contain nil")
            return f"[{', '.join(map(_toml_value, value))}]"
        case dict():
            pairs = (
                f"{_toml_key(name)} = {_toml_value(member)}"
                for name, member in sorted(value.items())
                if member is not None
            )
            return f"{{{', '.join(pairs)}}}"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def _plain(budget: StepBudget, value: object, steps: int) -> object:
    """Return a value as plain dictionaries and lists; each value in it costs `steps` steps."""
    budget.spend(steps)
    match value:
        case str():
            budget.make(len(value))
        case MissingValue():
            return None
        case Mapping():
            return {str(key): _plain(budget, member, steps) for key, member in value.items()}
        case list() | range():
            return [_plain(budget, element, steps) for element in value]
        case msgspec.Struct():
            return {
                name: _plain(budget, getattr(value, name), steps)
                for name in value.__struct_fields__
            }
    return value
