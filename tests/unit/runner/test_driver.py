"""Attempts: which of them have to wait for their turn."""

from typing import cast

import pytest

from daemon.runner.drivers.driver import Running, is_queued
from daemon.runner.drivers.process import Process
from daemon.runner.drivers.slurm.run import Run


@pytest.mark.parametrize(("kind", "waits"), [(Run, True), (Process, False)])
def test_an_attempt_of_a_cluster_waits_for_its_turn_and_a_process_does_not(
    kind: type, waits: bool
) -> None:
    assert is_queued(cast(Running, kind.__new__(kind))) is waits
