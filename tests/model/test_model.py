"""Random sequences of requests have the results of the reference model."""

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import ApiMachine
from tests.model.process import open_daemon

EXAMPLES = 5  # `python -m bench.model` runs more
STEPS = 30


def compare(directory: Path, examples: int, steps: int) -> None:
    """Run this many sequences against one daemon. Raises an error at the first difference."""
    with open_daemon(directory) as daemon:

        class Machine(ApiMachine):
            pass

        Machine.daemon = daemon
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )


def test_random_requests_have_the_results_of_the_model(tmp_path: Path) -> None:
    compare(tmp_path, EXAMPLES, STEPS)
