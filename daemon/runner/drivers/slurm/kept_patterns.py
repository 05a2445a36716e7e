"""Patterns of files to keep on a cluster host: the wrapper's searches, and the daemon's matching.

The wrapper can only use `find`, so its searches match more than the patterns. It sends a list of
entries. The daemon chooses among them, and does not trust the list. No I/O.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from daemon.launcher.file_collector import ANY_DEPTH
from daemon.runner.core.task_dir import PRIVATE, SECRETS, SHARED

MOST_LISTED = 1024 * 1024  # maximum bytes of a list
_DEEPEST = 64  # maximum directory depth, as on the daemon's host
_WILD = frozenset("*?[")
_HIDDEN = "."
_FIELDS = 4
_MOST_DIGITS = 15
# Comparisons of all patterns with all paths; they occupy a thread for a few seconds.
_MOST_STEPS = 3_000_000
_HERE = b"./"


class Entry(msgspec.Struct, frozen=True):
    """An entry of a directory on a host: `kind` is a letter as in `find -printf %y`."""

    kind: str
    links: int
    size: int
    path: bytes

    @property
    def fault(self) -> str:
        """Return why an entry of this type is not kept, or an empty string."""
        if self.kind == "l":
            return "it is a link, and links are not followed"
        return "" if self.kind == "f" else "it is not a regular file"


def searches(task: str, patterns: Sequence[str]) -> str:
    r"""Return the lines of a shell script that call `look` for each pattern.

    >>> searches("main", ["out/*.csv"])
    "look ./main/out 1 1 '*.csv'\n"
    >>> searches("main", ["alloc/**/a[0-9]", "x"])
    "look ./alloc 1 64 'a*'\nlook ./main 1 1 x\n"
    """
    return "".join(
        f"look {' '.join(map(shlex.quote, _search(task, pattern)))}\n" for pattern in patterns
    )


def _search(task: str, pattern: str) -> tuple[str, str, str, str]:
    names = full(task, pattern)
    plain = next((index for index, name in enumerate(names) if _WILD & {*name}), len(names))
    plain = min(plain, len(names) - 1)
    rest = names[plain:]
    depths = (1, _DEEPEST) if ANY_DEPTH in rest else (len(rest), len(rest))
    return "/".join([".", *names[:plain]]), str(depths[0]), str(depths[1]), _widen(rest[-1])


def _widen(name: str) -> str:
    """Return a pattern for `find` that matches at least the same names, in any locale."""
    first = name.partition("[")[0]
    wider = first.replace("\\", "\\\\").replace("?", "*")
    return f"{wider}*" if first != name else wider


def full(task: str, pattern: str) -> list[str]:
    """Return a pattern as path components, relative to the directory of the attempt."""
    names = pattern.split("/")
    return names if names[0] == SHARED and len(names) > 1 else [task, *names]


class TooManyComparisons(Exception):
    """The comparison of a list with its patterns would take too long."""


class _Steps:
    """The remaining number of comparisons that one list may cause."""

    def __init__(self) -> None:
        self.left = _MOST_STEPS


class _Pattern:
    """A path pattern as a state machine. A state is the number of pattern parts matched so far."""

    def __init__(self, task: str, pattern: str) -> None:
        names = full(task, pattern)
        pairs = zip(names, ["", *names], strict=False)
        self._parts = [name for name, before in pairs if (name, before) != (ANY_DEPTH, ANY_DEPTH)]
        self._tests = [_test(name) for name in self._parts]

    def matches(self, names: Sequence[str], steps: _Steps) -> bool:
        """Return whether a path matches by the rules of the daemon. Raises `TooManyComparisons`."""
        states = self._reached({0})
        for name in names:
            steps.left -= len(states)
            if steps.left < 0:
                raise TooManyComparisons
            states = self._reached(
                {
                    state if self._parts[state] == ANY_DEPTH else state + 1
                    for state in states
                    if state < len(self._parts) and self._tests[state](name)
                }
            )
            if not states:
                return False
        return len(self._parts) in states

    def _reached(self, states: set[int]) -> set[int]:
        """Return `states` and, because `**` can match no directory, the states after each `**`."""
        last = len(self._parts)
        return states | {
            state + 1 for state in states if state < last and self._parts[state] == ANY_DEPTH
        }


def _test(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests one component of a path."""
    if not _WILD & {*pattern}:
        return pattern.__eq__
    text, shows_hidden = "*" if pattern == ANY_DEPTH else pattern, pattern.startswith(_HIDDEN)
    return lambda name: (shows_hidden or not name.startswith(_HIDDEN)) and fnmatchcase(name, text)


def matches(path: bytes, task: str, pattern: str) -> bool:
    """Return whether a path matches a pattern by the rules of the daemon."""
    names = _names(path)
    return names is not None and _Pattern(task, pattern).matches(names, _Steps())


def _names(path: bytes) -> list[str] | None:
    """Return the components of a path; None for secrets and private files."""
    names = path.decode(errors="surrogateescape").split("/")
    return None if len(names) < 2 or names[1] in (SECRETS, PRIVATE) else names


class Found(NamedTuple):
    """A matching entry, or the reason why a pattern has no match."""

    entry: Entry | None
    reason: str = ""


def select(listing: bytes, task: str, patterns: Sequence[str], most: int) -> list[Found]:
    """Return up to `most` entries that match, in the order of the patterns and of the paths.

    The work is limited, but takes seconds: call it in a thread.
    """
    sorted_entries = sorted(entries(listing), key=lambda entry: entry.path)
    named = [
        (entry, names) for entry in sorted_entries if (names := _names(entry.path)) is not None
    ]
    selected: dict[bytes, Found] = {}
    steps, number = _Steps(), 0
    try:
        for text in patterns:
            pattern, any_matches = _Pattern(task, text), False
            for entry, names in named:
                if not pattern.matches(names, steps):
                    continue
                any_matches = True
                if entry.path in selected:
                    continue
                if number == most:
                    return [*selected.values(), Found(None, f"more than {most} files match")]
                selected[entry.path], number = Found(entry), number + 1
            if not any_matches:
                selected[b"\0" + text.encode()] = Found(None, f"no file matches {text}")
    except TooManyComparisons:
        reason = "there are too many files to compare with the patterns: use fewer patterns"
        return [*selected.values(), Found(None, reason)]
    return [*selected.values()]


def entries(listing: bytes) -> Iterator[Entry]:
    r"""Yield the valid entries of a list, without a truncated last entry.

    >>> [entry.path for entry in entries(b"f 1 3 ./main/a b\0x\0f 1 3 ./main/c")]
    [b'main/a b']
    """
    for record in listing.split(b"\0")[:-1]:
        fields = record.split(b" ", _FIELDS - 1)
        if len(fields) == _FIELDS and all(map(_is_number, fields[1:3])):
            kind, links, size, path = fields
            if path.count(b"/") > _DEEPEST + 2:  # wrappers do not search at this depth
                continue
            yield Entry(kind.decode("latin-1"), int(links), int(size), path.removeprefix(_HERE))


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _MOST_DIGITS
