"""The end offsets of the logs of an attempt."""

from types import SimpleNamespace
from typing import Any

import pytest

from daemon.runner.alloc.task_attempts import TaskAttempts
from daemon.runner.core.driver import ExitResult

LIMIT = 1000


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"stdout": 10, "stderr": 0}, {"stdout": 10, "stderr": 0}),
        ({"stdout": 10, "stderr": LIMIT + 1}, {}),
        ({}, {}),
    ],
)
def test_size_of_a_log_beyond_its_limit_is_measured_again(
    sizes: dict[str, int], expected: dict[str, int]
) -> None:
    removed: list[int | None] = []
    sweeper = SimpleNamespace(remove=lambda _log, end: removed.append(end))
    host = SimpleNamespace(sweeper=sweeper, logs=SimpleNamespace(moved_names=lambda _: []))
    instance = SimpleNamespace(allocation=SimpleNamespace(id="a"))
    attempts: Any = SimpleNamespace(_host=host, _instance=instance)
    logs: Any = [
        SimpleNamespace(kind=kind, limit=LIMIT, end_at=lambda size, _: size)
        for kind in ("stdout", "stderr")
    ]
    result = ExitResult(code=0, log_sizes=sizes)
    assert TaskAttempts._end_logs(attempts, logs, result) == expected
    assert removed == [expected.get(log.kind) for log in logs]
