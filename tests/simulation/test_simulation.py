"""A hundred lives of a daemon, and that each can be lived again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS, PARTS = 100, 4
STEPS = 25


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run seeds in a process of its own: the order of sets depends on how it was started."""
    command = [sys.executable, "-m", "bench.simulate", "--steps", str(STEPS), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", range(PARTS))
def test_promises_are_kept_whatever_happens(part: int) -> None:
    count = SEEDS // PARTS
    done = simulate("--first", part * count, "--seeds", count)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_life_every_time() -> None:
    first, second = simulate("--seed", 3), simulate("--seed", 3)
    assert (first.returncode, first.stderr) == (0, "")
    assert "the store holds" in first.stdout
    assert second.stdout == first.stdout
