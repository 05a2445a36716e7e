"""The choice of files to keep from the list of a host, with hostile lists and patterns."""

import time

import pytest

from daemon.runner.drivers.slurm.kept_patterns import Found, entries, matches, select

MOST_SECONDS = 20.0  # CPU time on a slow host; without limits, the lists below take minutes


def listing(*paths: str) -> bytes:
    return b"".join(f"f 1 1 ./{path}\0".encode() for path in paths)


def chosen(found: list[Found]) -> list[str]:
    return [entry.path.decode() if entry else reason for entry, reason in found]


def test_files_are_in_the_order_of_patterns_and_paths() -> None:
    given = listing("main/b", "main/a", "alloc/x", "main/local/c", "main/secrets/d")
    found = select(given, "main", ["b", "*", "none", "alloc/*", "**/c", "secrets/*"], 10)
    assert chosen(found) == [
        *("main/b", "main/a", "no file matches none", "alloc/x", "main/local/c"),
        "no file matches secrets/*",
    ]


def test_more_files_than_the_maximum_are_refused_together() -> None:
    found = select(listing("main/a", "main/b", "main/c"), "main", ["*"], 2)
    assert chosen(found) == ["main/a", "main/b", "more than 2 files match"]


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("**/a", "main/a", True),
        ("**/**/a", "main/x/y/a", True),
        ("**/a", "main/.x/a", False),
        ("**", "main/x/y", True),
        ("a/**/b", "main/a/b", True),
        ("a/**/b", "main/a/x/c", False),
        ("*.csv", "main/.csv", False),
        (".*", "main/.csv", True),
    ],
)
def test_double_star_matches_any_depth(pattern: str, path: str, is_match: bool) -> None:
    assert matches(path.encode(), "main", pattern) is is_match


def test_paths_beyond_the_search_depth_are_omitted() -> None:
    assert list(entries(listing("main/" + "a/" * 3000 + "x"))) == []


@pytest.mark.parametrize("pattern", ["**/" * 300 + "x", "*/" * 60 + "x", "*a*a*a*a*b"])
def test_hostile_lists_take_limited_work(pattern: str) -> None:
    paths = [f"main/{'a/' * 60}{number}" for number in range(7_000)]
    before = time.thread_time()
    found = select(listing(*paths), "main", [pattern] * 32, 100)
    assert time.thread_time() - before < MOST_SECONDS
    assert chosen(found)[-1].startswith(("no file matches", "there are too many files to compare"))
