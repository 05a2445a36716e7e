"""How things are told to people: states in words, times, sizes, and addresses of pages. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from storage.records.base import SECOND

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
SHORT = 8  # characters of an identifier that people read
BAR = ("running", "pending", "complete", "failed", "lost", "unknown")  # the order in a status bar


def address(*pieces: str, **query: object) -> str:
    """Return the address of a page: every second piece is a name, of whatever characters."""
    path = "".join(quote(one, safe="") if at % 2 else one for at, one in enumerate(pieces))
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def is_ours(target: str) -> bool:
    """Tell whether an address leads to a page of this interface, whoever has written it."""
    is_plain = target.isascii() and target.isprintable() and "\\" not in target
    return is_plain and target.startswith("/ui/")


def command(*words: object) -> str:
    """Return the line that does the same in a shell."""
    return shlex.join(["steward", *(str(one) for one in words if one not in ("", None))])


def short(identifier: str) -> str:
    """Return the beginning of an identifier."""
    return identifier[:SHORT]


def size(count: float) -> str:
    """Return a number of bytes in a unit that fits."""
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(_SIZES):
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.0f} {_SIZES[unit]}" if unit == 0 or value >= 10 else f"{value:.1f} {_SIZES[unit]}"
    )


def span(nanoseconds: int) -> str:
    """Return a length of time in its two largest units."""
    left = abs(nanoseconds) // SECOND
    told: list[str] = []
    for seconds, unit in _SPANS:
        if left >= seconds and len(told) < 2:
            told.append(f"{left // seconds} {unit}")
            left %= seconds
        elif told:
            break
    return " ".join(told) or "0 s"


def ago(now: int, then: int | None) -> str:
    """Return how long something is over, or how far it is off."""
    if not then:
        return "-"
    if abs(now - then) < SECOND:
        return "now"
    return f"{span(now - then)} ago" if then < now else f"in {span(then - now)}"


def counts(allocations: Iterable[Mapping[str, Any]] | None) -> dict[str, int]:
    """Return how many allocations have which status, in the order of a status bar."""
    found = Counter(str(one["ClientStatus"]) for one in allocations or ())
    return {status: found[status] for status in BAR if found[status]}


def job_state(line: Mapping[str, Any]) -> str:
    """Return how a job is, in one word: the wire says "dead" whether it succeeded or not."""
    allocations = [
        one for one in line["Allocs"] or () if one["JobVersion"] == line["Version"]
    ] or line["Allocs"]
    found = counts(allocations)
    if line["Stop"]:
        return "stopped"
    if line["ChildStatuses"] is not None and line["Status"] != "dead":
        return "ready"
    if line["Status"] == "pending":
        return "waiting"
    if line["Status"] == "dead":
        return "failed" if found.get("failed") and not found.get("complete") else "finished"
    if found.get("running", 0) < line["GroupCountSum"] and line["Type"] == "service":
        return "degraded" if found.get("running") else "starting"
    return "running"
