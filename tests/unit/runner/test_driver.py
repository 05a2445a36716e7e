"""Attempts: those that must wait in a queue."""

from typing import cast

import pytest

from daemon.runner.core.driver import TaskHandle, is_queued
from daemon.runner.drivers.process_handle import ProcessHandle
from daemon.runner.drivers.slurm.attempt import SlurmAttempt


@pytest.mark.parametrize(("kind", "waits"), [(SlurmAttempt, True), (ProcessHandle, False)])
def test_an_attempt_of_a_cluster_waits_for_its_turn_and_a_process_does_not(
    kind: type, waits: bool
) -> None:
    assert is_queued(cast(TaskHandle, kind.__new__(kind))) is waits
