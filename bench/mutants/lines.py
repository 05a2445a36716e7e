"""The lines of Steward that each test executes, in the process of pytest and in all its children.

`sys.monitoring` reports the lines (Python 3.12 and newer). A process switches off the event of a
line after its first occurrence, and on again for the next test. So recording slows tests down only
a little.
"""

import gzip
import json
import mmap
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.mutants.changes import Mutant
from bench.mutants.recorded import sitecustomize

_RECORDED = Path(sitecustomize.__file__).parent


@dataclass(frozen=True)
class RecordedTest:
    """A passing test: its id, its duration in seconds, and for each file the lines as `0` or `1`.

    The test without an id has the lines that are executed while pytest loads the tests.
    """

    id: str
    seconds: float
    lines: Mapping[str, str]

    def executes(self, mutant: Mutant) -> bool:
        lines = self.lines.get(mutant.path, "")
        return any(
            "1" in lines[at : at + 1] for at in (mutant.line, mutant.statement, *mutant.uses)
        )

    def loads(self, mutant: Mutant) -> bool:
        return mutant.path in self.lines


def read(recording: Path, files: Sequence[Path]) -> list[RecordedTest]:
    """Return the tests of a recording, with the lines of these files."""
    names = {str(path) for path in files}
    with gzip.open(recording, "rt") as file:
        entries = [json.loads(line) for line in file]
    return [
        RecordedTest(
            entry["test"],
            entry["seconds"],
            {path: lines for path, lines in entry["lines"].items() if path in names},
        )
        for entry in entries
    ]


class LinePlugin:
    """A plugin of pytest that writes one JSON line for each test that passes."""

    def __init__(self, files: Sequence[Path], directory: Path, output: Path) -> None:
        places: dict[str, int] = {}
        self._size = 0
        for path in files:
            places[str(path)] = self._size
            self._size += path.read_bytes().count(b"\n") + 2
        self._ends = list(
            zip(places, places.values(), [*places.values(), self._size][1:], strict=True)
        )
        directory.mkdir(exist_ok=True)
        (directory / "places.json").write_text(json.dumps(places))
        (directory / "lines").write_bytes(b"0" * self._size)
        os.environ |= {"MUTANT_LINES": str(directory), "PYTHONPATH": str(_RECORDED)}
        self._lines: mmap.mmap = sitecustomize.record(directory)
        self._output = output
        self._has_passed: dict[str, bool] = {}

    def pytest_collection_finish(self) -> None:
        self._write("", 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines[:] = b"0" * self._size
        sys.monitoring.restart_events()
        began = time.perf_counter()
        result = yield
        if self._has_passed.get(item.nodeid):
            self._write(item.nodeid, time.perf_counter() - began)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        passed = self._has_passed.get(report.nodeid, True)
        self._has_passed[report.nodeid] = passed and report.passed

    def _write(self, test: str, seconds: float) -> None:
        executed = {
            path: self._lines[start:end].rstrip(b"0").decode()
            for path, start, end in self._ends
            if b"1" in self._lines[start:end]
        }
        entry = {"test": test, "seconds": round(seconds, 3), "lines": executed}
        with gzip.open(self._output, "at") as file:
            file.write(json.dumps(entry) + "\n")
