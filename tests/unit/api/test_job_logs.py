"""How a log is read in whole lines."""

from pathlib import Path

from daemon.api.cluster.job_logs import Tail
from daemon.runner.logs import TaskLog
from storage.records.task import LogConfig


def test_a_log_that_is_put_aside_is_read_on_where_it_lies_then(tmp_path: Path) -> None:
    lies = tmp_path / "alloc" / "one"
    logs = lies / "alloc" / "logs"
    logs.mkdir(parents=True)
    file = logs / "main.stdout.0"
    file.write_text("first\n")
    places = [lies]
    tail = Tail(
        label=b"one main | ",
        find=lambda: TaskLog(str(places[-1]), "main", "stdout", LogConfig()),
        position=0,
        contains=b"",
        is_over=lambda: True,
    )
    assert b"".join(tail.pieces(is_last=False)) == b"one main | first\n"
    file.write_text("first\nlast words\n")
    places.append(tmp_path / "logs" / "one")
    places[-1].parent.mkdir()
    lies.rename(places[-1])
    assert b"".join(tail.pieces(is_last=True)) == b"one main | last words\n"
    assert b"".join(tail.pieces(is_last=True)) == b""
