"""Progress reports of a long download."""

from daemon.runner.setup.task_setup import progress_reporter
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND


def test_long_download_is_reported_periodically() -> None:
    now, told = [100 * SECOND], list[TaskEvent]()
    tell = progress_reporter("https://example.net/model", lambda: now[0], told.append)
    tell(1_000_000)
    now[0] += 14 * SECOND
    tell(2_000_000)
    assert told == []
    now[0] += SECOND
    tell(70_500_000)
    tell(70_600_000)
    assert [(task_event.time, task_event.display_message) for task_event in told] == [
        (
            115 * SECOND,
            "Client is downloading artifacts: 70 MB so far of https://example.net/model",
        )
    ]
    assert told[0].details == {"artifact": "https://example.net/model", "bytes": "70500000"}
    now[0] += 15 * SECOND
    tell(90_000_000)
    assert len(told) == 2
