"""Sample of simulated runs, their reproducibility, and concurrent runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import simulate as bench
from tests.simulation.scenario import Broken
from tests.time_limits import HAPPENS_WITHIN

ROOT = Path(__file__).parents[2]
SEEDS, PARTS = 48, 4
STEPS = 25


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run seeds in a separate process, because the order of sets depends on its environment."""
    command = [sys.executable, "-m", "bench.simulate", "--steps", str(STEPS), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", range(PARTS))
def test_invariants_hold_in_random_runs(part: int) -> None:
    count = SEEDS // PARTS
    done = simulate("--first", part * count, "--seeds", count)
    assert done.returncode == 0, done.stdout + done.stderr


def test_seed_reproduces_a_simulated_run() -> None:
    first, second = simulate("--seed", 3), simulate("--seed", 3)
    assert (first.returncode, first.stderr) == (0, "")
    assert "the store holds" in first.stdout
    assert second.stdout == first.stdout


def test_every_failing_seed_is_reported_in_order(monkeypatch, capsys) -> None:
    def run(seed: int, directory: Path, steps: int) -> list[str]:
        if seed % 2:
            raise Broken(seed, [f"fault of {seed} in process {os.getpid()}"], [f"{steps} steps"])
        return []

    monkeypatch.setattr(bench, "run", run)
    status = bench.live_all(range(5), STEPS, 2)
    told = capsys.readouterr().out.splitlines()
    assert status == 1
    assert [line for line in told if line.startswith("seed ")] == [
        f"seed {seed} broke a promise: python -m bench.simulate --seed {seed} --steps {STEPS}"
        for seed in (1, 3)
    ]
    assert told[0].startswith("1 seeds, 0 broke a promise, ")
    assert told[1] == f"{STEPS} steps"
    assert told[2].startswith("fault of 1 in process ")
    assert f"process {os.getpid()}" not in told[2]
    assert told[-1].startswith("5 seeds, 2 broke a promise, ")


def test_interrupt_ends_all_workers_and_reports_the_completed_runs() -> None:
    command = [sys.executable, "-m", "bench.simulate", "--seeds", "2000", "--steps", "1"]
    with subprocess.Popen(
        [*command, "--workers", "2"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        first = owner.stdout.readline()  # progress output: all workers have started
        os.killpg(owner.pid, signal.SIGINT)
        rest, _ = owner.communicate(timeout=HAPPENS_WITHIN)
    assert first.startswith("1 seeds, 0 broke a promise, ")
    assert owner.returncode == 130
    assert "seeds, 0 broke a promise, " in rest.splitlines()[-1]
    with pytest.raises(ProcessLookupError):
        os.killpg(owner.pid, 0)
