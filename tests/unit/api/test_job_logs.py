"""Reads of a log in whole lines."""

from pathlib import Path

from daemon.api.cluster.log_lines import LineTimes, LogSection, Tail
from tests.samples import NOW
from tests.task_logs import log_in


async def test_log_moved_to_the_retained_logs_is_read_without_a_gap(tmp_path: Path) -> None:
    lies = tmp_path / "alloc" / "one"
    logs = lies / "alloc" / "logs"
    logs.mkdir(parents=True)
    file = logs / "main.stdout.0"
    file.write_text("first\n")
    tail = Tail(
        label=b"one main | ",
        log=log_in(lies),
        section=LogSection(0, None),
        contains=b"",
        since=0,
        dates=LineTimes([], NOW),
        is_over=lambda: True,
    )

    async def lines(*, is_last: bool) -> bytes:
        while await tail.pull(1024, is_last=is_last):
            pass
        return tail.take()

    assert await lines(is_last=False) == b"one main | first\n"
    file.write_text("first\nlast words\n")
    kept = tmp_path / "logs" / "one"
    kept.parent.mkdir()
    lies.rename(kept)
    assert await lines(is_last=True) == b"one main | last words\n"
    assert await lines(is_last=True) == b""
