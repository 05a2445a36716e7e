"""Attempts that must wait in a queue."""

from typing import cast

import pytest

from daemon.runner.core.driver import TaskHandle, is_queued
from daemon.runner.drivers.process_handle import ProcessHandle
from daemon.runner.drivers.slurm.attempt import SlurmAttempt


@pytest.mark.parametrize(("kind", "waits"), [(SlurmAttempt, True), (ProcessHandle, False)])
def test_cluster_attempt_is_queued_and_a_process_is_not(kind: type, waits: bool) -> None:
    assert is_queued(cast(TaskHandle, kind.__new__(kind))) is waits
