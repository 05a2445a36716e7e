"""Kills of the daemon before and after every persistent effect, and checks of its promises.

    python -m bench.crash_matrix [--runs 2000] [--seed 1] [--workers 2] [--into DIRECTORY] [--all]
                                 [--scenes SCENE...]

A point is a place in the code with a persistent effect, and a scene is a scenario that reaches
points. Each scene first runs without a kill. Then workers execute the planned runs concurrently,
each with its own daemons. The files in the directory have one line for each completed run, so the
same command continues an interrupted series. The output is the number of kills for each kind of
point, or with `--all` for each point. The exit status is 1 if a promise was broken, a point was
never reached, or a run is missing. With `--scenes`, only these scenes run, and points that they do
not reach are not reported. See `tests/crash/matrix.py`.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec
import trio

from tests.crash.daemon_runs import open_daemon_runs
from tests.crash.matrix import VICTIMS, Matrix, Row, Way, begun, hits, rehearse
from tests.crash.point_counters import SIDES
from tests.crash.points import kind_of, points

_EVERY = 30.0  # seconds between progress lines
_WAYS, _ROWS = "ways.json", "rows-*.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--scenes", nargs="+", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-crash-") as directory:
        kept = options.into or Path(directory) / "kept"
        kept.mkdir(exist_ok=True)
        return run(Path(directory), kept, options)


def run(directory: Path, kept: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    if not (kept / _WAYS).exists():
        ways = trio.run(_rehearsed, directory / "rehearsal", options.scenes)
        (kept / _WAYS).write_bytes(msgspec.json.encode(ways))
        print(f"ran each scene without a kill in {time.monotonic() - began:.0f} s", flush=True)
    if not options.scenes:
        show("no scene reaches", matrix_of(kept, options.seed).missed(points()))
    done = {row.number for row in rows_of(kept)}
    left = [number for number in range(options.runs) if number not in done]
    random.Random(options.seed).shuffle(left)  # distributes the slow runs among the workers
    workers = [
        multiprocessing.get_context("spawn").Process(
            target=work, args=(directory, kept, options.seed, left[first :: options.workers])
        )
        for first in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(_EVERY)
            rows = rows_of(kept)
            broken = sum(bool(row.broken) for row in rows)
            seconds = time.monotonic() - began
            print(f"{len(rows)} runs, {broken} broken, {seconds:.0f} s", flush=True)
    return report(rows_of(kept), options)


async def _rehearsed(directory: Path, scenes: Collection[str]) -> list[Way]:
    async with open_daemon_runs(directory) as daemon_runs:
        return await rehearse(daemon_runs, scenes)


def matrix_of(kept: Path, seed: int) -> Matrix:
    """Return the planned runs, which are the same for all workers."""
    return Matrix(msgspec.json.decode((kept / _WAYS).read_bytes(), type=list[Way]), seed)


def rows_of(kept: Path) -> list[Row]:
    """Return the completed runs that are recorded in the directory."""
    lines = [line for file in kept.glob(_ROWS) for line in file.read_bytes().splitlines(True)]
    whole = (line for line in lines if line.endswith(b"\n"))
    return sorted(
        (msgspec.json.decode(line, type=Row) for line in whole), key=lambda row: row.number
    )


def work(directory: Path, kept: Path, seed: int, numbers: list[int]) -> None:
    """Execute the planned runs with these numbers; record the results in `kept`."""
    trio.run(_work, directory, kept, matrix_of(kept, seed), numbers)


async def _work(directory: Path, kept: Path, matrix: Matrix, numbers: list[int]) -> None:
    place = directory / str(os.getpid())
    with (kept / _ROWS.replace("*", str(os.getpid()))).open("ab", buffering=0) as file:
        while numbers:
            async with begun(place) as daemon_runs:
                is_whole = True
                while numbers and is_whole:
                    row = await matrix.run(daemon_runs, numbers.pop(0))
                    file.write(msgspec.json.encode(row) + b"\n")
                    is_whole = not row.broken
            shutil.rmtree(place)


def report(rows: list[Row], options: argparse.Namespace) -> int:
    """Print the table of results; return the exit status."""
    hit = hits(rows)
    kinds: dict[str, list[str]] = {}
    for name in points():
        kinds.setdefault(name if options.all else kind_of(name), []).append(name)
    for name in VICTIMS:
        kinds[name] = [name]
    width = max(map(len, kinds))
    print(f"{'':{width}} points   runs before  after broken")
    for kind, members in kinds.items():
        mine = [row for row in rows if row.point in members]
        before, after = (sum(hit[name, side] for name in members) for side in SIDES)
        broken = sum(bool(row.broken) for row in mine)
        print(f"{kind:{width}} {len(members):6} {len(mine):6} {before:6} {after:6} {broken:6}")
    exact = sum(row.is_exact for row in rows)
    print(
        f"{len(rows)} runs: in {exact}, the kill came exactly at the point; in the others, when "
        f"the scene was over; {sum(row.seconds for row in rows):.0f} s for all workers together"
    )
    never = [] if options.scenes else [name for name in points() if not _is_hit(hit, name)]
    broken_rows = [row for row in rows if row.broken]
    show("never hit", never)
    show("promise broken", [f"run {row.number}, {row.scene}: {row.broken}" for row in broken_rows])
    return int(bool(never or broken_rows) or len(rows) < options.runs)


def _is_hit(hit: Mapping[tuple[str, int], int], name: str) -> bool:
    return any(hit[name, side] for side in SIDES)


def show(what: str, lines: Iterable[str]) -> None:
    for line in lines:
        print(f"{what}: {line}")


if __name__ == "__main__":
    sys.exit(main())
