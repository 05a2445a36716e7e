"""Kill the daemon before and after everything that it does that stays, and look for what it promised.

    python -m bench.crash_matrix [--runs 2000] [--seed 1] [--all]

Prints how often it ended at each kind of point, or with `--all` at each point. The exit status is 1 when a
promise was broken, or a point was never hit. See `tests/crash/matrix.py`.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import trio

from tests.crash.matrix import PREY, Broken, Matrix, Row, open_matrix
from tests.crash.tally import SIDES


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-crash-") as directory:
        return trio.run(run, Path(directory), options)


async def run(directory: Path, options: argparse.Namespace) -> int:
    began = time.perf_counter()
    async with open_matrix(directory, options.seed) as matrix:
        await matrix.rehearse()
        print(f"{len(matrix.points)} points, rehearsed in {time.perf_counter() - began:.0f} s")
        broken = ""
        try:
            await matrix.run(options.runs, lambda row: tell(matrix, row))
        except Broken as error:
            broken = str(error)
        return report(matrix, began, broken, each=options.all)


def tell(matrix: Matrix, row: Row) -> None:
    if len(matrix.rows) % 50 == 0:
        print(f"{len(matrix.rows)} runs", flush=True)


def report(matrix: Matrix, began: float, broken: str, *, each: bool) -> int:
    """Print the table; return the exit status."""
    hits = Counter((row.point, row.side) for row in matrix.rows if row.is_exact)
    names = {name: name if each else name.rpartition(":")[2] for name in (*matrix.points, *PREY)}
    kinds: dict[str, list[str]] = {}
    for name, kind in names.items():
        kinds.setdefault(kind, []).append(name)
    width = max(map(len, kinds))
    print(f"{'':{width}} points before  after")
    for kind, members in sorted(kinds.items()):
        before, after = (sum(hits[name, side] for name in members) for side in SIDES)
        print(f"{kind:{width}} {len(members):6} {before:6} {after:6}")
    exact = sum(row.is_exact for row in matrix.rows)
    print(
        f"{len(matrix.rows)} runs, {exact} of them at their point and the others when its scene was over, "
        f"{time.perf_counter() - began:.0f} s"
    )
    never = [name for name in matrix.points if not any(hits[name, side] for side in SIDES)]
    show("never hit", never)
    show("promise broken", [broken] if broken else [])
    return int(bool(never or broken))


def show(what: str, lines: Iterable[str]) -> None:
    for line in lines:
        print(f"{what}: {line}")


if __name__ == "__main__":
    sys.exit(main())
