"""The common parts of two responses, and their permitted differences.

Each server chooses its own ids, indexes, times and durations, so only their presence is compared.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.wire import replay

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CHILD = re.compile(r"/(dispatch|periodic)-\d+(-[0-9a-f]+)?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)")
INDEX = re.compile(r"(index:?) \d+")
CHOSEN = re.compile(r"(Index|Time|TimeNanos|At|Timestamp|Duration|LastRestart|WaitUntil)\Z")
UNORDERED = "allocations", "evaluations"  # the last words of paths whose lists have no order
DECIDED = Path(__file__).with_name("decided.txt")


class Response(NamedTuple):
    """A response: the status, and the JSON document or the text."""

    status: int
    body: Any


class Difference(NamedTuple):
    """One place where two responses differ."""

    method: str
    path: str
    where: str  # JSON pointer, or `status`
    first: Any
    second: Any


def comparable(value: Any, key: str = "") -> Any:
    """Return a document without anything that a server chooses."""
    if isinstance(value, dict):
        return {name: comparable(item, name) for name, item in replay.to_neutral(value).items()}
    if isinstance(value, list):
        return [comparable(item, key) for item in value]
    if CHOSEN.search(key) and not isinstance(value, bool) and value:
        return f"<{key}>"
    if isinstance(value, str):
        for pattern, name in ((UUID, "<id>"), (CHILD, r"/\1-<child>"), (TIME, "<time>")):
            value = pattern.sub(name, value)
        return INDEX.sub(r"\1 <number>", value)
    return value


def differences(method: str, path: str, first: Response, second: Response) -> Iterator[Difference]:
    """Yield the places where the responses to one request differ."""
    if first.status != second.status:
        yield Difference(method, path, "status", first.status, second.status)
        return
    one, two = comparable(first.body), comparable(second.body)
    if path.endswith(UNORDERED):
        one, two = _in_order(one), _in_order(two)
    for where, here, there in _unequal(one, two, ""):
        yield Difference(method, path, where, here, there)


MISSING = "<missing>"


def _in_order(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, list) else value


def _unequal(one: Any, two: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(two, dict):
        for name in dict.fromkeys([*one, *two]):
            yield from _unequal(one.get(name, MISSING), two.get(name, MISSING), f"{where}/{name}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for number, (here, there) in enumerate(zip(one, two, strict=True)):
            yield from _unequal(here, there, f"{where}/{number}")
    elif one != two or type(one) is not type(two):
        yield where, one, two


def decided() -> Mapping[str, str]:
    """Return the patterns of intended differences, with their headings in docs/compatibility.md."""
    lines = DECIDED.read_text().splitlines()
    rows = (line.split("  ", 1) for line in lines if line and not line.startswith("#"))
    return {pattern: heading.strip() for pattern, heading in rows}


def is_decided(one: Difference, patterns: Mapping[str, str]) -> bool:
    """Return whether a difference is in the list of intended differences."""
    text = f"{one.method} {one.path} {one.where}"
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)
