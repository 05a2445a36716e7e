"""A pytest plugin that records, for each test, its duration and the executed lines of an area.

The lines come from `sys.monitoring` (Python 3.12 and newer). The event of a line is switched off
after its first occurrence, and on again for the next test. So the plugin slows tests down only a
little.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

_TOOL = sys.monitoring.COVERAGE_ID


class LinePlugin:
    """Writes one JSON line for each test that passes: its id, seconds and lines by file."""

    def __init__(self, files: set[str], output: Path) -> None:
        self._files, self._output = files, output
        self._lines: dict[str, set[int]] = {}
        self._has_passed: dict[str, bool] = {}
        sys.monitoring.use_tool_id(_TOOL, "steward mutants")
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, self._record)
        sys.monitoring.set_events(_TOOL, sys.monitoring.events.LINE)

    def _record(self, code: CodeType, line: int) -> object:
        if code.co_filename in self._files:
            self._lines.setdefault(code.co_filename, set()).add(line)
        return sys.monitoring.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = {}
        sys.monitoring.restart_events()
        began = time.perf_counter()
        result = yield
        if self._has_passed.get(item.nodeid):
            entry = {
                "test": item.nodeid,
                "seconds": round(time.perf_counter() - began, 3),
                "lines": {path: sorted(lines) for path, lines in self._lines.items()},
            }
            with self._output.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        passed = self._has_passed.get(report.nodeid, True)
        self._has_passed[report.nodeid] = passed and report.passed
