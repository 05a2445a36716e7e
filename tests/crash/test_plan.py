"""The plan of the crash matrix, and the evaluation of its runs."""

import argparse
import random
from pathlib import Path

import msgspec
import pytest

from bench import crash_matrix
from tests.crash.matrix import VICTIMS, Matrix, Row, Way
from tests.crash.points import points

WAYS = [
    Way("main", "short", 0.5, {"a:os.kill": (3, 3), "b:os.open": (1, 0)}),
    Way("main", "long", 10.0, {"a:os.kill": (9, 9)}),
]
OPTIONS = argparse.Namespace(runs=1, seed=1, all=False, scenes=[])


def row(number: int, point: str, broken: str = "") -> Row:
    return Row(number, point, 0, "main: short", 1.0, is_exact=True, broken=broken)


def keep(directory: Path, *rows: Row, more: bytes = b"") -> None:
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (directory / "rows-1.jsonl").write_bytes(lines + more)


def test_both_sides_of_each_reached_point_are_planned() -> None:
    matrix = Matrix(WAYS, 1)
    assert sorted(matrix.turns) == [("a:os.kill", 0), ("a:os.kill", 1), ("b:os.open", 0)]
    assert matrix.missed(["a:os.kill", "b:os.open", "c:os.write"]) == ["c:os.write"]
    assert matrix.turns_of("file") == [("b:os.open", 0)]


def test_same_seed_gives_the_same_plan_and_prefers_rare_points() -> None:
    def chosen() -> list[tuple[str, int]]:
        chance = random.Random(7)
        kills = [Matrix(WAYS, 1).choose(chance, "a:os.kill", 0)[0] for _ in range(100)]
        return [(kill.way.scene, kill.times) for kill in kills]

    first = chosen()
    assert first == chosen()
    assert {scene for scene, _ in first} == {"short", "long"}
    assert sum(scene == "short" for scene, _ in first) > 80
    assert max(times for _, times in first) <= 5


def test_next_scene_is_tried_after_a_scene_ends() -> None:
    kills = Matrix(WAYS, 1).choose(random.Random(7), "a:os.kill", 0)
    assert sorted(kill.way.scene for kill in kills) == ["long", "short"]


def test_truncated_line_is_a_run_to_repeat(tmp_path: Path) -> None:
    keep(tmp_path, row(4, "a:os.kill"), row(2, VICTIMS[0]), more=b'{"number": 3, "po')
    assert [row.number for row in crash_matrix.rows_of(tmp_path)] == [2, 4]


def test_broken_promise_fails_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(number, point) for number, point in enumerate(points())]
    assert crash_matrix.report(rows, OPTIONS) == 0
    assert crash_matrix.report([*rows, row(999, points()[0], "it is gone")], OPTIONS) == 1
    assert "promise broken: run 999, main: short: it is gone" in capsys.readouterr().out


def test_point_that_was_never_hit_fails_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(number, point) for number, point in enumerate(points()[1:])]
    assert crash_matrix.report(rows, OPTIONS) == 1
    assert f"never hit: {points()[0]}" in capsys.readouterr().out
