"""Field selectors: the argument of `-t`, which prints a part of a document. No I/O.

A selector is a path such as `.Status`, `.TaskGroups[0].Name` or `.[].ID`. `[]` means every element.
A field of a list means this field of every element.
"""

import re

from storage.errors import Invalid

_STEP = re.compile(r"\.?\[(-?\d*)\]|\.([^.\[\]]+)")
_TEMPLATE = re.compile(r"\{\{-?\s*(\.[\w.]+)\s*-?\}\}")


def steps(selector: str) -> list[str | int | None]:
    """Return the steps of a selector: a field, a position, or None for every element.

    Raises `Invalid`, also for a template, which Nomad's command line would accept.
    """
    if "{{" in selector:
        plain = _TEMPLATE.fullmatch(selector.strip())
        example = plain[1] if plain else ".Status or .TaskGroups[0].Name"
        raise Invalid(f"-t takes a field selector, not a template: {selector!r}; write {example}")
    path = selector if selector.startswith((".", "[")) else f".{selector}"
    parsed_steps: list[str | int | None] = []
    position = 0
    while path != "." and position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise Invalid(
                f"-t {selector!r}: cannot read {path[position:]!r}; write a path such as "
                ".Status, .TaskGroups[0].Name or .[].ID"
            )
        parsed_steps.append(_step(step[1], step[2]))
        position = step.end()
    return parsed_steps


def _step(position: str | None, field: str | None) -> str | int | None:
    if field is not None:
        return field
    return int(position) if position else None


def select(document: object, selector: str) -> list[object]:
    """Return the selected parts of a document. Raises `Invalid` for unknown fields."""
    parts = [document]
    for step in steps(selector):
        parts = [inner for part in parts for inner in _select_step(part, step, selector)]
    return parts


def _select_step(part: object, step: str | int | None, selector: str) -> list[object]:
    match part, step:
        case list(), None:
            return list(part)
        case list(), int() if -len(part) <= step < len(part):
            return [part[step]]
        case list(), str():
            return [inner for element in part for inner in _select_step(element, step, selector)]
        case dict(), str() if step in part:
            return [part[step]]
        case dict(), None:
            return list(part.values())
        case dict(), str():
            fields = ", ".join(sorted(map(str, part))) or "no fields"
            raise Invalid(
                f"-t {selector!r}: there is no field {step!r} here; the object has {fields}"
            )
        case list(), int():
            length = f"{len(part)} element{'' if len(part) == 1 else 's'}"
            raise Invalid(f"-t {selector!r}: there is no element {step}: the list has {length}")
        case _:
            where = "elements" if step is None else f"field {step!r}"
            raise Invalid(f"-t {selector!r}: {part!r} is a single value and has no {where}")
