"""JSON and YAML in templates. No I/O."""

import json
from collections.abc import Mapping

import msgspec

from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.values import MissingValue, bounded, text_of
from storage.errors import Malformed
from storage.records import json_steps

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
