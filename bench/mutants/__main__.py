"""Measurement of the share of small changes of the code that the tests detect.

    python -m bench.mutants AREA [--sample 400] [--seed 1] [--directory DIR] [--shard 1/2]
    python -m bench.mutants --list

The first run of an area records the lines that each test of the area executes. Each mutant of the
sample then runs with the tests that execute its line, for at most a minute. First come the fast
tests, one of each file in turn, and then the slow tests. The script prints the mutants that no test
detects. Tests that start a separate daemon are not used, because only this process has the change.

It needs root and Python 3.12 or newer: each mutant runs in separate namespaces, because a mutant of
code that kills processes or deletes files could kill or delete anything.
"""

import argparse
import ast
import functools
import importlib.machinery
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from bench.mutants.areas import AREAS
from bench.mutants.changes import Mutant, mutants, mutated
from bench.mutants.lines import LinePlugin
from bench.mutants.sandbox import run_inside

ROOT = Path(__file__).parents[2]
SECONDS_OF_TESTS = 60.0  # limit for a mutant's tests: the sum of their durations without a mutant
FAST = 0.5  # seconds; tests up to this duration run before the slow ones
START = 60.0  # seconds that pytest may take until its first test; more than it needs
MAP_SECONDS = 7200.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("area", nargs="?", choices=sorted(AREAS))
    parser.add_argument("--list", action="store_true", help="print the areas")
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp/steward-mutants"))
    parser.add_argument("--shard", default="1/1", metavar="N/OF")
    parser.add_argument(
        "--only", metavar="PATH:LINE", help="run all mutants of this line instead of a sample"
    )
    options = parser.parse_args()
    if options.list or options.area is None:
        for name, area in sorted(AREAS.items()):
            print(name, "·", *area.code, "·", *area.tests)
        return 0
    if os.geteuid() or sys.version_info < (3, 12):
        parser.error("this needs root and Python 3.12 or newer")
    os.chdir(ROOT)
    os.environ |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    sys.dont_write_bytecode = True
    options.directory.mkdir(parents=True, exist_ok=True)
    tests = line_map(options.area, options.directory)
    chosen = choose(options.area, options.sample, options.seed, options.only)
    shard, of = (int(part) for part in options.shard.split("/"))
    return judge(chosen[shard - 1 :: of], tests, options.directory)


def files(area: str) -> list[Path]:
    return sorted(path for pattern in AREAS[area].code for path in ROOT.glob(pattern))


def choose(area: str, sample: int, seed: int, only: str | None) -> list[Mutant]:
    """Return a seeded random sample of the area's mutants, or all mutants of the line `only`.

    `only` has the form `FILE:LINE`.
    """
    everything = [mutant for path in files(area) for mutant in mutants(path)]
    if only:
        place, _, line = only.partition(":")
        return [
            mutant
            for mutant in everything
            if mutant.path.endswith(place) and mutant.line == int(line)
        ]
    return random.Random(seed).sample(everything, min(sample, len(everything)))


def line_map(area: str, directory: Path) -> list[dict[str, Any]]:
    """Return the passing tests of an area, each with the lines that it executes.

    If no lines are recorded, run the tests and record them.
    """
    output = directory / f"{area}.lines"
    if not output.exists():
        part = directory / f"{area}.part"
        part.unlink(missing_ok=True)
        names = {str(path) for path in files(area)}
        run = functools.partial(_pytest, AREAS[area].tests, [LinePlugin(names, part)])
        code = run_inside(run, directory, MAP_SECONDS)
        print(f"{area}: the tests exited with status {code}", file=sys.stderr)
        part.rename(output)
    return [json.loads(line) for line in output.read_text().splitlines()]


def judge(chosen: list[Mutant], tests: list[dict[str, Any]], directory: Path) -> int:
    """Run each mutant with its tests; print the survivors and the share of detected mutants."""
    counts = dict.fromkeys(("killed", "late", "survived", "not run"), 0)
    began = time.perf_counter()
    for number, mutant in enumerate(chosen, 1):
        names, seconds = tests_of(mutant, tests)
        result = outcome(mutant, names, seconds, directory) if names else "not run"
        counts[result] += 1
        if result in ("survived", "not run"):
            place = Path(mutant.path).relative_to(ROOT)
            print(
                f"{result}: {place}:{mutant.line}  {mutant.text}  ({len(names)} tests)", flush=True
            )
        if number % 20 == 0:
            took = time.perf_counter() - began
            print(
                f"{number} of {len(chosen)} in {took:.0f} s: {counts}", file=sys.stderr, flush=True
            )
    detected = counts["killed"] + counts["late"]
    print(f"{detected} of {len(chosen)} detected ({detected / max(1, len(chosen)):.1%}): {counts}")
    return 0


def tests_of(mutant: Mutant, tests: list[dict[str, Any]]) -> tuple[list[str], float]:
    """Return the tests that execute the line of a mutant, and their total duration in seconds."""
    by_file: dict[str, list[tuple[float, str]]] = {}
    for test in tests:
        lines = test["lines"].get(mutant.path, ())
        if lines and (
            mutant.is_executed_at_import or mutant.line in lines or mutant.statement in lines
        ):
            name = str(test["test"])
            by_file.setdefault(name.partition("::")[0], []).append((test["seconds"], name))
    rounds = itertools.zip_longest(*(sorted(group) for group in by_file.values()))
    in_turn = [entry for fastest in rounds for entry in fastest if entry]
    names: list[str] = []
    total = 0.0
    for limit in (FAST, SECONDS_OF_TESTS):
        for seconds, name in in_turn:
            is_next = name not in names and seconds <= limit
            if is_next and (not names or total + seconds <= SECONDS_OF_TESTS):
                names.append(name)
                total += seconds
    return names, total


def outcome(mutant: Mutant, names: list[str], seconds: float, directory: Path) -> str:
    run = functools.partial(_with_mutant, mutant, functools.partial(_pytest, names, [], "-x"))
    code = run_inside(run, directory, START + 5 * seconds)
    if code is None:
        return "late"
    return "survived" if code == 0 else "killed"


def _with_mutant(mutant: Mutant, run: Callable[[], int]) -> int:
    """Call `run` while an import of the file loads the mutant; return the result of `run`."""
    tree = mutated(mutant)
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if loader.path == mutant.path:
            return compile(ast.Module(tree.body, tree.type_ignores), mutant.path, "exec")
        return original(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code
    return run()


def _pytest(tests: list[str], plugins: list[object], *arguments: str) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", *arguments]
    return int(pytest.main([*options, *tests], plugins=plugins))


if __name__ == "__main__":
    sys.exit(main())
