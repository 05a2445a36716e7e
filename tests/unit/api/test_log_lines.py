"""The time at which each line of a log was written, and the part of a log that an attempt wrote."""

import time
from pathlib import Path

import pytest

from daemon.api.cluster.log_lines import MOST_LINES, LineTimes, LogSection, Tail, stamp
from daemon.runner.core.task_log import Marks
from tests.step_timing import slowness
from tests.task_logs import add, log_in, now

WHOLE = LogSection(0, None)
MOST_TIME = 5_000_000  # nanoseconds
NOON = 1_795_521_600_000_000_000  # 2026-11-24T12:00:00Z


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"2026-11-24T12:00:00Z up", NOON),
        (b"[2026-11-24 12:00:00,5Z] up", NOON + 500_000_000),
        (b"2026-11-24T13:00:00+01:00 up", NOON),
        (b"2026-11-24 13:00:00.25 +0100 up", NOON + 250_000_000),
        (b"2026-11-24T12:00:00 in a zone that nobody names", None),
        (b"2026-13-24T12:00:00Z no month", None),
        (b"at 2026-11-24T12:00:00Z", None),
        (b"", None),
    ],
)
def test_timestamp_must_be_at_the_start_and_have_a_zone(line: bytes, expected: int | None) -> None:
    assert stamp(line) == expected


def test_position_has_the_time_of_the_next_mark() -> None:
    dates = LineTimes([(50, 300), (10, 100)], at_end=90)
    assert [dates.at(position) for position in (1, 100, 101, 300, 301)] == [10, 10, 50, 50, 90]


def test_marks_are_few_and_never_date_a_line_too_early() -> None:
    marks = Marks()
    for second in range(1, 1001):
        marks.note(second, second * 10)
        marks.note(second, second * 10)  # the same mark again
    assert len(marks.ends) <= 128
    dates = LineTimes(zip(marks.times, marks.ends, strict=True), at_end=1001)
    assert all(dates.at(second * 10) >= second for second in range(1, 1001))
    assert dates.at(10_000) == 1000


def tail(root: Path, *, stretch: LogSection = WHOLE, **given: object) -> Tail:
    (root / "alloc/logs").mkdir(parents=True)
    log = log_in(root)
    add(log, b"one\n2026-11-24T12:00:00Z two\nthree\nunfin")
    fields = {"contains": b"", "since": 0, "dates": LineTimes([(NOON + 9, 33)], at_end=NOON + 20)}
    return Tail(
        label=b"a | ",
        log=log,
        section=stretch,
        is_over=lambda: True,
        **{**fields, **given},
    )


def read(found: Tail, *, is_last: bool = True) -> bytes:
    while now(found.pull(7, is_last=is_last)):
        pass
    return found.take()


def test_whole_lines_are_read_and_the_last_unfinished_one_at_the_end(
    tmp_path: Path,
) -> None:
    assert read(tail(tmp_path)).splitlines()[-1] == b"a | unfin"


def test_unfinished_line_is_not_read_early(tmp_path: Path) -> None:
    assert read(tail(tmp_path), is_last=False).splitlines()[-1] == b"a | three"


def test_lines_are_filtered_by_text_and_time(tmp_path: Path) -> None:
    assert read(tail(tmp_path / "a", contains=b"e")) == b"a | one\na | three\n"
    assert read(tail(tmp_path / "b", since=NOON + 10)) == b"a | three\na | unfin\n"


def test_an_attempt_is_a_part_of_the_log(tmp_path: Path) -> None:
    assert read(tail(tmp_path, stretch=LogSection(4, 29))) == b"a | 2026-11-24T12:00:00Z two\n"


def test_lines_are_taken_up_to_a_time(tmp_path: Path) -> None:
    found = tail(tmp_path)
    while now(found.pull(100, is_last=True)):
        pass
    # A mark gives the first line its time. A line cannot be older than the line before it in the
    # same log.
    assert [line.time - NOON for line in found.queue] == [9, 9, 20, 20]
    assert found.take(until=NOON + 9).count(b"\n") == 2
    assert found.take(until=NOON + 20).count(b"\n") == 2


def filled(root: Path, content: bytes) -> Tail:
    """Return a reader of a log with this content."""
    (root / "alloc/logs").mkdir(parents=True)
    log = log_in(root)
    add(log, content)
    return Tail(
        label=b"a | ",
        log=log,
        section=WHOLE,
        contains=b"",
        since=0,
        dates=LineTimes([], at_end=NOON),
        is_over=lambda: True,
    )


@pytest.mark.parametrize("line", [b"\n", b"2026-11-24T12:00:00.5Z\n", b"2026-13-24T12:00:00Z\n"])
def test_pull_of_short_lines_is_limited_without_losing_lines(tmp_path: Path, line: bytes) -> None:
    content = line * (64 * 1024 // len(line)) + b"unfin"
    found, longest, taken = filled(tmp_path, content), 0, b""
    while True:
        began = time.thread_time_ns()
        is_more = now(found.pull(64 * 1024, is_last=True))
        assert len(found.queue) <= MOST_LINES
        taken += found.take()
        longest = max(longest, time.thread_time_ns() - began)
        if not is_more:
            break
    assert taken.replace(b"a | ", b"") == content + b"\n"
    assert longest <= MOST_TIME or longest <= MOST_TIME * slowness()


def test_endless_line_is_split_between_other_lines(tmp_path: Path) -> None:
    found = filled(tmp_path, b"\n" * 3 + b"x" * 70_000)
    while now(found.pull(100_000, is_last=False, lines=2)):
        assert len(found.queue) <= 5
    assert [len(line.text) for line in found.queue] == [0, 0, 0, 70_000]
