"""Measurements of each minute of the soak test, and their comparison at the end."""

import math
import os
import re
import sqlite3
import statistics
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME
from tests.service.daemon import Steward

# Factor by which a latency may grow, both in milliseconds and as a share of the host's limit.
SLOWER = 1.2
# Permitted growth from start to end: relative, and absolute.
ROOM = {
    "pss_mib": (0.03, 2.0),
    "anonymous_mib": (0.03, 2.0),
    "launcher_mib": (0.03, 1.0),
    "descriptors": (0.0, 8.0),
    "threads": (0.0, 4.0),
    "processes": (0.0, 12.0),
    "passing_mib": (0.05, 0.5),
    "log_mib": (0.0, 4.0),
    "free_mib": (0.0, 4.0),
    "files_mib": (0.05, 5.0),
}
FOR_EVER = ("job_versions", "sqlite_autoindex_job_versions_1", "job_version_states")


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one minute; latencies are medians in ms."""

    number: int
    age: int  # minutes since the end of the warm-up, or since the last kill
    disturbance: str  # in this minute, for instance a full disk
    tables: dict[str, float]
    fork_exec_per_s: float
    fdatasync_per_s: float
    held: dict[str, float]
    processor: float
    took: dict[str, float]
    calls: int
    faults: int


# --- measurement ---


def held(steward: Steward) -> dict[str, float]:
    """Return the current resource usage of the daemon and its tasks, by name."""
    process = Path(f"/proc/{steward.pid}")
    kib = _memory(process)
    # Ignore files that disappear in the meantime.
    sizes = [
        (name, _size_of(Path(directory, name)))
        for directory, _, names in os.walk(steward.data_dir)
        for name in names
    ]
    launchers = (process / "task" / str(steward.pid) / "children").read_text().split()
    return {
        "pss_mib": kib["Pss"] / 1024,
        "anonymous_mib": kib["Anonymous"] / 1024,
        # Not PSS, which is lower while a child that the launcher forked shares its pages.
        "launcher_mib": sum(_memory(Path("/proc", pid))["Anonymous"] for pid in launchers) / 1024,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
        "processes": len(steward.processes()),
        "store_mib": sum(size for name, size in sizes if ".db" in name) / 2**20,
        "log_mib": sum(size for name, size in sizes if name.endswith(".db-wal")) / 2**20,
        "files_mib": sum(size for name, size in sizes if ".db" not in name) / 2**20,
    }


def _memory(process: Path) -> dict[str, int]:
    """Return the memory of a process in KiB, by kind; 0 if the process has just ended."""
    try:
        rollup = (process / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {"Pss": 0, "Anonymous": 0}
    sizes = re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.MULTILINE)
    return {name: int(size) for name, size in sizes}


def tables(steward: Steward) -> dict[str, float]:
    """Return the size of each table and index of the store in MiB."""
    uri = f"file:{store_dir(steward.data_dir) / FILE_NAME}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        sizes = connection.execute("SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE")
        return {name: size / 2**20 for name, size in sizes}


def _size_of(path: Path) -> int:
    """Return the disk usage of a file; 0 if it no longer exists."""
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


# --- comparison ---


def line(minute: Minute) -> str:
    shown = "  ".join(f"{name} {value:.1f}" for name, value in minute.held.items())
    return (
        f"{minute.number:3}  fork+exec {minute.fork_exec_per_s:.0f}  fdatasync {minute.fdatasync_per_s:.0f}  "
        f"cpu {minute.processor:.2f}  calls {minute.calls}  faults {minute.faults}  {shown}"
        f"  {minute.disturbance}"
    )


def middle(minutes: list[Minute], value: Callable[[Minute], float | None]) -> float:
    """Return the median of a value over some minutes; NaN if no minute has the value."""
    values = [one for minute in minutes if (one := value(minute)) is not None]
    return statistics.median(values) if values else math.nan


def _held_of(name: str, minute: Minute) -> float:
    return minute.held[name]


def _table(name: str, minute: Minute) -> float:
    return minute.tables.get(name, 0)


def _value(name: str, minute: Minute) -> float:
    return float(getattr(minute, name))


def _took(name: str, minute: Minute) -> float | None:
    return minute.took.get(name)


def _as_share(name: str, minute: Minute) -> float | None:
    """Return a call's latency as the number of processes that the host could start in this time."""
    took = minute.took.get(name)
    return took and took / 1000 * minute.fork_exec_per_s


def verdict(minutes: list[Minute], span: int) -> list[str]:
    """Print a comparison of the last `span` minutes with the first ones; return the regressions.

    Both periods begin at the same time after a start of the daemon, and have the same disturbances.
    Latencies are those of minutes without a disturbance.
    """
    whole = len(minutes) // span * span
    first, last = minutes[:span], minutes[whole - span : whole]
    wrong = [*_held(first, last)]
    print(f"\n{'table or index, MiB':32}{'first':>10}{'last':>10}")
    for name, size in sorted(last[-1].tables.items(), key=lambda name_and_size: -name_and_size[1])[
        :12
    ]:
        before = middle(first, partial(_table, name))
        print(f"{name:32}{before:10.2f}{size:10.2f}")
    calm = [[minute for minute in some if not minute.disturbance] for some in (first, last)]
    wrong += _latencies(*calm)
    for name in ("fork_exec_per_s", "fdatasync_per_s", "processor"):
        values = [middle(some, partial(_value, name)) for some in calm]
        print(f"{name:24}{values[0]:10.2f}{values[1]:10.2f}")
    print(
        "\nmedian over all lives of the daemon, by minutes since its start: PSS in MiB, descriptors, threads"
    )
    for age in range(span):
        same = [minute for minute in minutes if minute.age == age]
        values = [
            middle(same, partial(_held_of, name)) for name in ("pss_mib", "descriptors", "threads")
        ]
        print(f"{age + 1:3}" + "".join(f"{value:8.1f}" for value in values))
    return wrong


def _held(first: list[Minute], last: list[Minute]) -> list[str]:
    wrong = []
    print(f"\n{'held':32}{'first':>10}{'last':>10}")
    for name in first[0].held:
        before, after = (middle(some, partial(_held_of, name)) for some in (first, last))
        share, more = ROOM.get(name, (math.inf, 0))
        grew = after > before * (1 + share) + more
        wrong += [f"{name} grew from {before:.1f} to {after:.1f}"] * grew
        print(f"{name:32}{before:10.1f}{after:10.1f}{'  grew' if grew else ''}")
    return wrong


def _latencies(first: list[Minute], last: list[Minute]) -> list[str]:
    wrong = []
    print(
        f"\n{'call':24}{'first ms':>10}{'last ms':>10}{'ratio':>8}{'in fork+execs':>15}{'':>8}{'ratio':>8}"
    )
    for name in sorted({name for minute in first for name in minute.took}):
        times = [middle(some, partial(_took, name)) for some in (first, last)]
        shares = [middle(some, partial(_as_share, name)) for some in (first, last)]
        ratio, of_host = times[1] / times[0], shares[1] / shares[0]
        slower = f"{name} takes {ratio:.2f} times as long, {of_host:.2f} of the host's limit"
        wrong += [slower] * (min(ratio, of_host) > SLOWER)
        print(
            f"{name:24}{times[0]:10.1f}{times[1]:10.1f}{ratio:8.2f}"
            f"{shares[0]:15.1f}{shares[1]:8.1f}{of_host:8.2f}"
        )
    return wrong
