"""Text functions. They count characters as grapheme clusters."""

from daemon.jobspec.hcl import graphemes
from daemon.jobspec.hcl.functions.registry import (
    bounded,
    bounded_parts,
    function,
    items_of,
    number,
    per_character,
    strings_of,
    text,
    text_list,
    texts,
    whole_number,
)
from daemon.jobspec.hcl.scope import FunctionFault, HclFunction
from daemon.jobspec.hcl.values import Value
from daemon.matching import regexp
from storage.errors import Invalid


def _upper(value: str) -> Value:
    return value.upper() if value.isascii() else "".join([_single(c, c.upper()) for c in value])


def _lower(value: str) -> Value:
    return value.lower() if value.isascii() else "".join([_single(c, c.lower()) for c in value])


def _single(char: str, changed: str) -> str:
    """Return `char` in another case (`changed`); return `char` itself if `changed` is longer."""
    return changed if len(changed) == 1 else char


def _title(value: str) -> Value:
    before = " "
    letters = []
    for char in value:
        letters.append(_single(char, char.title()) if _separates(before) else char)
        before = char
    return "".join(letters)


def _separates(char: str) -> bool:
    if char.isascii():
        return not (char.isalnum() or char == "_")
    return char.isspace()


def _chomp(value: str) -> Value:
    return value.rstrip("\r\n")


def _indent(spaces: Value, value: str) -> Value:
    count = whole_number(spaces, "the number of spaces")
    if count < 0:
        raise FunctionFault("the number of spaces must not be negative")
    bounded(len(value) + value.count("\n") * count)
    return value.replace("\n", "\n" + " " * count)


def _replace(value: str, old: str, new: str) -> Value:
    count = value.count(old) if old else len(value) + 1
    bounded(len(value) + count * len(new))
    return value.replace(old, new)


def _regex_replace(value: str, pattern: str, replacement: str) -> Value:
    try:
        return regexp.replace(pattern, replacement, value, bounded)
    except Invalid as error:
        raise FunctionFault(str(error)) from error


def _regex_cost(values: tuple[Value, ...]) -> int:
    subject, pattern = str(values[0]), str(values[1])
    try:
        return regexp.search_cost(pattern, len(subject))
    except Invalid:
        return 0  # the function itself raises the error


def _split(separator: str, value: str) -> Value:
    bounded_parts(value.count(separator))
    return text_list(value.split(separator) if separator else list(value))


def _join(separator: str, *lists: Value) -> Value:
    if not lists:
        raise FunctionFault("at least one list is required")
    for index, elements in enumerate(lists):
        if None in items_of(elements):
            position = items_of(elements).index(None)
            raise FunctionFault(
                f"element {position} of list {index} is null; cannot concatenate null values"
            )
    parts = [part for strings in lists for part in strings_of(strings)]
    bounded(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _strlen(value: str) -> Value:
    return graphemes.count(value)


def _reverse(value: str) -> Value:
    return "".join(reversed(list(graphemes.split(value))))


def _substr(value: str, offset: Value, length: Value) -> Value:
    start, count = whole_number(offset, "the offset"), whole_number(length, "the length")
    characters = list(graphemes.split(value))
    if start < 0:
        start = max(0, start + len(characters))
    return "".join(characters[start:] if count < 0 else characters[start : start + count])


FUNCTIONS: dict[str, HclFunction] = {
    "upper": function(_upper, text("str"), cost=per_character),
    "lower": function(_lower, text("str"), cost=per_character),
    "title": function(_title, text("str"), cost=per_character),
    "trim": function(
        lambda value, cut: value.strip(cut) if cut else value, text("str"), text("cutset")
    ),
    "trimprefix": function(
        lambda value, start: value.removeprefix(start), text("str"), text("prefix")
    ),
    "trimsuffix": function(lambda value, end: value.removesuffix(end), text("str"), text("suffix")),
    "trimspace": function(lambda value: value.strip(), text("str")),
    "chomp": function(_chomp, text("str")),
    "indent": function(_indent, number("spaces"), text("str")),
    "replace": function(_replace, text("str"), text("substr"), text("replace")),
    "regex_replace": function(
        _regex_replace, text("str"), text("pattern"), text("replace"), cost=_regex_cost
    ),
    "split": function(_split, text("separator"), text("str")),
    "join": function(_join, text("separator"), rest=texts("lists")),
    "strlen": function(_strlen, text("str"), cost=per_character),
    "strrev": function(_reverse, text("str"), cost=per_character),
    "reverse": function(_reverse, text("str"), cost=per_character),
    "substr": function(
        _substr, text("str"), number("offset"), number("length"), cost=per_character
    ),
}
