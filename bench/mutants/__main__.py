"""Measurement of the share of small changes of the code that the tests detect.

    python -m bench.mutants AREA [--sample 400] [--seed 1] [--directory DIR] [--shard 1/2]
    python -m bench.mutants --list

The first run of a directory of tests records the lines that each test executes; delete the
recordings after a change of the code. Each mutant of the sample then runs with the tests that
execute its line, for at most half a minute. The script prints the mutants that no test detects.
`explained.tsv` has the mutants that change no result that matters: file, line, change and reason.

It needs root and Python 3.12 or newer: each mutant runs in separate namespaces, because a mutant of
code that kills processes or deletes files could kill or delete anything.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.mutants.areas import AREAS
from bench.mutants.changes import Mutant, mutants
from bench.mutants.judge import OPTIONS, Judge
from bench.mutants.lines import LinePlugin, RecordedTest, read
from bench.mutants.sandbox import end_with_parent, run_inside

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).parent / "explained.tsv"
RECORDING_SECONDS = 7200.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("area", nargs="?", choices=sorted(AREAS))
    parser.add_argument("--list", action="store_true", help="print the areas")
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp/steward-mutants"))
    parser.add_argument("--shard", default="1/1", metavar="N/OF")
    parser.add_argument(
        "--only",
        metavar="PATH:LINE",
        action="append",
        default=[],
        help="run all mutants of this line instead of a sample",
    )
    parser.add_argument(
        "--tests", metavar="PATH", action="append", help="record and use only these tests"
    )
    options = parser.parse_args()
    if options.list or options.area is None:
        for name, area in sorted(AREAS.items()):
            print(name, "·", *area.code, "·", *area.tests)
        return 0
    if os.geteuid() or sys.version_info < (3, 12):
        parser.error("this needs root and Python 3.12 or newer")
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = "/tmp/hypothesis"
    options.directory.mkdir(parents=True, exist_ok=True)
    paths = options.tests or AREAS[options.area].tests
    tests = recorded(options.area, paths, options.directory, is_new=bool(options.tests))
    chosen = choose(options.area, options.sample, options.seed, options.only)
    shard, of = (int(part) for part in options.shard.split("/"))
    return judge(chosen[shard - 1 :: of], paths, tests, options.directory)


def files(area: str) -> list[Path]:
    return sorted(path for pattern in AREAS[area].code for path in ROOT.glob(pattern))


def choose(area: str, sample: int, seed: int, only: Sequence[str]) -> list[Mutant]:
    """Return a seeded random sample of the area's mutants, or all mutants of the lines `only`.

    A line has the form `FILE:LINE`.
    """
    everything = [mutant for path in files(area) for mutant in mutants(path)]
    if only:
        return [
            mutant
            for mutant in everything
            if any(f"{mutant.path}:{mutant.line}".endswith(place) for place in only)
        ]
    return random.Random(seed).sample(everything, min(sample, len(everything)))


def recorded(
    area: str, paths: Sequence[str], directory: Path, *, is_new: bool
) -> list[RecordedTest]:
    """Return the passing tests below these paths, with the lines of the area that each executes.

    Run and record the tests that have no recording, or all if `is_new`.
    """
    tests: list[RecordedTest] = []
    for path in paths:
        recording = directory / f"{path.replace('/', '.')}.lines.gz"
        if is_new or not recording.exists():
            part = directory / f"{recording.name}.{os.getpid()}"

            def run(_: object, path: str = path, part: Path = part) -> int:
                everything = sorted({file for name in AREAS for file in files(name)})
                plugin = LinePlugin(everything, Path("/run/lines"), part)
                return _pytest([path], plugin)

            code = run_inside(run, directory, RECORDING_SECONDS)
            print(f"{path}: the tests exited with status {code}", file=sys.stderr)
            part.rename(recording)
        tests += read(recording, files(area))
    return tests


def explained() -> dict[tuple[str, str, str], str]:
    """Return the reasons why mutants change no result that matters: by file, line and change.

    The line is its text, which rarely changes, and not its number.
    """
    rows = [row.split("\t") for row in EXPLAINED.read_text("utf-8").splitlines()]
    return {(file, line, change): reason for file, line, change, reason in rows}


def source_line(file: str, number: int) -> str:
    return (ROOT / file).read_text("utf-8").splitlines()[number - 1].strip()


def judge(
    chosen: Sequence[Mutant], paths: Sequence[str], tests: Sequence[RecordedTest], directory: Path
) -> int:
    """Run each mutant with its tests; print the survivors and the share of detected mutants."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        end_with_parent()
        os.close(reading)
        with os.fdopen(writing, "w") as output:
            status = _pytest(paths, Judge(chosen, tests, directory, output))
        os._exit(status)
    os.close(writing)
    counts: Counter[str] = Counter()
    equivalent = explained()
    with os.fdopen(reading) as results:
        for number, line in enumerate(results, 1):
            result, path, at, text, tried, seconds = json.loads(line)
            name = str(Path(path).relative_to(ROOT))
            if (
                result in ("survived", "not run")
                and (name, source_line(name, at), text) in equivalent
            ):
                result = "explained"
            counts[result] += 1
            place = f"{name}:{at}"
            if result in ("survived", "not run"):
                print(f"{result}: {place}  {text}  ({tried} tests, {seconds} s)", flush=True)
            progress = (
                f"{number} of {len(chosen)}: {result} in {seconds} s ({tried} tests): {place}"
            )
            print(progress, file=sys.stderr, flush=True)
    _, status = os.waitpid(child, 0)
    detected = counts["killed"] + counts["late"]
    share = detected / max(1, len(chosen))
    print(f"{detected} of {len(chosen)} detected ({share:.1%}): {dict(counts)}")
    return os.waitstatus_to_exitcode(status)


def _pytest(paths: Sequence[str], plugin: object) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    options = [option for option in OPTIONS if option != "-x"]
    return int(pytest.main([*options, *paths], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
