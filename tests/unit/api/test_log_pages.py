"""Lines of a log by pages and by search, over numbered files."""

from pathlib import Path

import pytest

from daemon.api.cluster.log_pages import LogLine, Search, after, before
from daemon.runner.core.task_log import Stream
from storage.records.task import LogConfig
from tests.task_logs import add, log_in, path_of, seen

SMALL = LogConfig(max_files=2, max_file_size_mb=1)
MEGABYTE = 1024 * 1024


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Yield a log after 3 MiB in lines of 64 bytes; only its last two files of 1 MiB remain."""
    log = log_in(tmp_path / ("a" * 8), config=SMALL)
    path_of(log).parent.mkdir(parents=True)
    lines = [f"line {number:06} ".ljust(63, ".") for number in range(3 * MEGABYTE // 64)]
    add(log, "\n".join([*lines, "the end"]).encode())
    return seen(log)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text.rstrip(". ") for line in lines]


def test_last_lines_are_shown_including_the_unfinished_one(stream: Stream) -> None:
    lines = before(stream, None, 3)
    assert texts(lines) == ["line 049150", "line 049151", "the end"]
    assert [line.unfinished for line in lines] == [False, False, True]


def test_previous_and_next_pages_join_without_a_gap(stream: Stream) -> None:
    last = before(stream, None, 100)
    earlier = before(stream, last[0].at, 100)
    assert earlier[-1].end == last[0].at
    assert after(stream, earlier[0].at, 200) == [*earlier, *last]
    assert after(stream, last[-1].end, 10) == []


def test_nothing_is_shown_before_the_retained_lines(stream: Stream) -> None:
    first, _ = stream.span()
    assert first > 0
    assert before(stream, first, 10) == []
    assert after(stream, 0, 1)[0].at == first


def test_long_line_is_truncated(tmp_path: Path) -> None:
    log = log_in(tmp_path / ("a" * 8))
    path_of(log).parent.mkdir(parents=True)
    add(log, b"x" * 100_000 + b"\nnext\n")
    long, following = before(seen(log), None, 10)
    assert (len(long.text), long.cut, long.unfinished) == (16_384, True, False)
    assert (following.text, following.at) == ("next", 100_001)


def found_in(stream: Stream, text: str, *, context: int = 0, most: int = 50) -> Search:
    search = Search(text, context=context, most=most)
    position: int | None = stream.span()[1]
    while position is not None and not search.is_full:
        position = search.step(stream, position)
    return search


def test_search_covers_all_retained_files(stream: Stream) -> None:
    first, _ = stream.span()
    kept = first // 64
    found = texts(found_in(stream, "LINE 0").lines(stream))
    assert found == [f"line {number:06}" for number in range(3 * MEGABYTE // 64)][-50:]
    assert texts(found_in(stream, f"{kept:06}").lines(stream)) == [f"line {kept:06}"]
    assert found_in(stream, f"{kept - 1:06}").lines(stream) == []


def test_found_lines_have_context_lines_and_gaps(stream: Stream) -> None:
    lines = found_in(stream, "5000 ", context=1).lines(stream)
    assert texts(lines)[:4] == ["line 034999", "line 035000", "line 035001", "line 044999"]
    assert [line.matches for line in lines][:4] == [False, True, False, False]
    assert [line.gap for line in lines][:4] == [False, False, False, True]


def test_match_does_not_span_lines(tmp_path: Path) -> None:
    log = log_in(tmp_path / ("a" * 8))
    path_of(log).parent.mkdir(parents=True)
    add(log, b"ab\nab a\n\nB\nab")
    assert texts(found_in(seen(log), "b\na").lines(seen(log))) == []
    assert texts(found_in(seen(log), "B\n").lines(seen(log))) == ["ab", "B"]
    matches = found_in(seen(log), "a").lines(seen(log))
    assert [(line.at, line.unfinished) for line in matches] == [(0, False), (3, False), (11, True)]


def test_full_search_continues_at_its_end(stream: Stream) -> None:
    whole = texts(found_in(stream, "00 ", most=200).lines(stream))
    search = Search("00 ", context=0, most=3)
    position = search.step(stream, stream.span()[1])
    parts = texts(search.lines(stream))
    while position is not None:
        search = Search("00 ", context=0, most=3)
        while position is not None and not search.is_full:
            position = search.step(stream, position)
        parts = [*texts(search.lines(stream)), *parts]
    assert parts[-len(whole) :] == whole
    assert len(set(parts)) == len(parts)
