"""Runs mutants with tests that pytest has collected once.

Collecting the tests of an area and importing Steward takes many times longer than the tests of a
mutant. So one process does both, and a fork of it in a sandbox runs each mutant. The fork replaces
the code of the functions that the mutant changes.
"""

import ast
import gc
import itertools
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO

import pytest

from bench.mutants.changes import Mutant, mutated
from bench.mutants.lines import RecordedTest
from bench.mutants.sandbox import Extend, replace_file, run_inside

SECONDS_OF_TESTS = 30.0  # limit for a mutant's tests: the sum of their durations without a mutant
FAST = 0.5  # seconds; tests up to this duration run before the slow ones
_START = 30.0  # seconds that a test may take in addition to five times its duration
OPTIONS = (
    *("-q", "-x", "-s", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"),
    "--hypothesis-seed=0",
)


class Judge:
    """A plugin of pytest that runs mutants instead of the collected tests."""

    def __init__(
        self,
        chosen: Sequence[Mutant],
        tests: Sequence[RecordedTest],
        directory: Path,
        output: IO[str],
    ) -> None:
        self._chosen, self._tests = chosen, tests
        self._directory, self._output = directory, output
        self._paths = {mutant.path for mutant in chosen}
        self._functions: list[FunctionType] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        """Find the functions of the mutants, before the tests hide them from `gc.get_objects`."""
        self._functions = [
            item
            for item in gc.get_objects()
            if isinstance(item, FunctionType) and item.__code__.co_filename in self._paths
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for mutant in self._chosen:
            tests = [test for test in select_tests(mutant, self._tests) if test.id in items]
            began = time.perf_counter()
            result = self._result(mutant, items, tests)
            took = time.perf_counter() - began
            entry = [result, mutant.path, mutant.line, mutant.text, len(tests), round(took, 2)]
            self._output.write(json.dumps(entry) + "\n")
            self._output.flush()
        return True

    def _result(
        self, mutant: Mutant, items: dict[str, pytest.Item], tests: Sequence[RecordedTest]
    ) -> str:
        def run(extend: Extend) -> int:
            tree = mutated(mutant)
            ran_already = any(not test.id and test.executes(mutant) for test in self._tests)
            is_replaced = not ran_already and replace_code(tree, mutant.path, self._functions)
            replace_file(Path(mutant.path), ast.unparse(tree))
            if is_replaced:
                return _run([items[test.id] for test in tests], tests, extend)
            extend(2 * _START + 5 * sum(test.seconds for test in tests))
            words = [sys.executable, "-m", "pytest", *OPTIONS, *(test.id for test in tests)]
            return subprocess.call(words)

        if not tests:
            return "not run"
        code = run_inside(run, self._directory, _START)
        if code is None:
            return "late"
        return "survived" if code == 0 else "killed"


def select_tests(mutant: Mutant, tests: Sequence[RecordedTest]) -> list[RecordedTest]:
    """Return the tests that execute the line of a mutant, in the order in which to run them.

    First come the tests of a file whose name contains the name of the module. Then come the fast
    tests, one of each file in turn, and last the slow tests. If no test
    executes code that the import of a module executes, all tests that load the module count.
    """
    suitable = [test for test in tests if test.id and test.executes(mutant)]
    if not suitable and mutant.is_executed_at_import:
        suitable = [test for test in tests if test.id and test.loads(mutant)]
    by_file: dict[str, list[RecordedTest]] = defaultdict(list)
    for test in suitable:
        by_file[test.id.partition("::")[0]].append(test)
    groups = [sorted(group, key=lambda test: test.seconds) for group in by_file.values()]
    in_turn = [test for rounds in itertools.zip_longest(*groups) for test in rounds if test]
    total = 0.0
    chosen: list[RecordedTest] = []
    name = Path(mutant.path).stem

    def order(test: RecordedTest) -> tuple[bool, bool]:
        return name not in test.id.partition("::")[0].rpartition("/")[2], test.seconds > FAST

    for test in sorted(in_turn, key=order):
        if not chosen or total + test.seconds <= SECONDS_OF_TESTS:
            chosen.append(test)
            total += test.seconds
    return chosen


def replace_code(tree: ast.Module, path: str, functions: Iterable[FunctionType]) -> bool:
    """Give the functions of a changed module their changed code; return False if none has any.

    Only functions have code that can run again: the body of a module or class cannot.
    """
    present = _codes(compile(Path(path).read_text("utf-8"), path, "exec"))
    changed = _codes(compile(ast.Module(tree.body, tree.type_ignores), path, "exec"))
    by_name = {(code.co_qualname, code.co_firstlineno): code for code in changed - present}
    has_changed = False
    for function in functions:
        old = function.__code__
        if old.co_filename != path or old in changed:
            continue
        new = by_name.get((old.co_qualname, old.co_firstlineno))
        if new is not None and len(new.co_freevars) == len(old.co_freevars):
            function.__code__ = new
            has_changed = True
    return has_changed


def _codes(code: CodeType) -> set[CodeType]:
    """Return the code of all functions in a module, at any depth."""
    inner = {item for item in code.co_consts if isinstance(item, CodeType)}
    return inner.union(*map(_codes, inner))


def _run(items: Sequence[pytest.Item], tests: Sequence[RecordedTest], extend: Extend) -> int:
    """Run collected tests up to the first that fails; return the exit status."""
    session = items[0].session
    for item, test, following in itertools.zip_longest(items, tests, items[1:]):
        extend(_START + 5 * test.seconds)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0
