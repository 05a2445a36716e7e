"""The files to keep on a host of a cluster: what its wrapper searches, and which entries match.

The wrapper knows only `find`, so its searches are wider than the patterns. It sends a list of
entries, of which the daemon chooses. The list is untrusted. No I/O.
"""

import shlex
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache

import msgspec

from daemon.launcher.file_collector import ANY_DEPTH
from daemon.runner.core.task_dir import PRIVATE, SECRETS, SHARED

MOST_LISTED = 1024 * 1024  # bytes of a list
_DEEPEST = 64  # directories below each other, as on the daemon's host
_WILD = frozenset("*?[")
_HIDDEN = "."
_FIELDS = 4
_MOST_DIGITS = 15
_HERE = b"./"


class Entry(msgspec.Struct, frozen=True):
    """An entry of a directory on a host: `kind` is a letter as in `find -printf %y`."""

    kind: str
    links: int
    size: int
    path: bytes

    @property
    def fault(self) -> str:
        """Return why no such entry is kept, or an empty text."""
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
    return "".join(f"look {' '.join(map(shlex.quote, _search(task, one)))}\n" for one in patterns)


def _search(task: str, pattern: str) -> tuple[str, str, str, str]:
    names = full(task, pattern)
    plain = next((at for at, name in enumerate(names) if _WILD & {*name}), len(names))
    plain = min(plain, len(names) - 1)
    rest = names[plain:]
    depths = (1, _DEEPEST) if ANY_DEPTH in rest else (len(rest), len(rest))
    return "/".join([".", *names[:plain]]), str(depths[0]), str(depths[1]), _wider(rest[-1])


def _wider(name: str) -> str:
    """Return a pattern for `find` that matches at least the same names, in any locale."""
    first = name.partition("[")[0]
    wider = first.replace("\\", "\\\\").replace("?", "*")
    return f"{wider}*" if first != name else wider


def full(task: str, pattern: str) -> list[str]:
    """Return the names of a pattern from the directory of the attempt."""
    names = pattern.split("/")
    return names if names[0] == SHARED and len(names) > 1 else [task, *names]


def matches(path: bytes, task: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, by the rules of the daemon's host."""
    names = path.decode(errors="surrogateescape").split("/")
    if len(names) < 2 or names[1] in (SECRETS, PRIVATE):
        return False
    return _fits(names, full(task, pattern))


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    @cache
    def fits(at: int, of: int) -> bool:
        if of == len(pattern) or at == len(names):
            return of == len(pattern) and at == len(names)
        if pattern[of] != ANY_DEPTH:
            return _is_named(names[at], pattern[of]) and fits(at + 1, of + 1)
        return fits(at, of + 1) or (_is_named(names[at], "*") and fits(at + 1, of))

    return fits(0, 0)


def _is_named(name: str, pattern: str) -> bool:
    if not _WILD & {*pattern}:
        return name == pattern
    if name.startswith(_HIDDEN) and not pattern.startswith(_HIDDEN):
        return False
    return fnmatchcase(name, pattern)


def entries(listing: bytes) -> Iterator[Entry]:
    r"""Yield the valid entries of a list, without a last one that is cut off.

    >>> [entry.path for entry in entries(b"f 1 3 ./main/a b\0x\0f 1 3 ./main/c")]
    [b'main/a b']
    """
    for record in listing.split(b"\0")[:-1]:
        fields = record.split(b" ", _FIELDS - 1)
        if len(fields) == _FIELDS and all(map(_is_number, fields[1:3])):
            kind, links, size, path = fields
            yield Entry(kind.decode("latin-1"), int(links), int(size), path.removeprefix(_HERE))


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _MOST_DIGITS
