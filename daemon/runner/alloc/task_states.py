"""The states of a task runner, and the changes between them. No I/O.

Each stored `TaskPhase` covers several of these states. `pending` covers the states before
`RUNNING`; `running` covers `REATTACHING` and `RUNNING`. The states themselves are not stored: after
a restart of the daemon, a runner begins with `WAITING` or `REATTACHING`.
"""

from enum import Enum, auto

from daemon.runner.core.state_machine import StateTable, rule
from storage.records.allocation import TaskPhase


class RunnerState(Enum):
    """The states of a task runner, in order."""

    WAITING = auto()
    DELAYED = auto()
    SETUP = auto()
    STARTING = auto()
    ANSWERED = auto()  # the driver accepted the start; a cluster may still queue the attempt
    REATTACHING = auto()
    RUNNING = auto()
    ENDED = auto()  # an attempt ended, or could not start
    DEAD = auto()


_S = RunnerState

TABLE: StateTable[RunnerState] = {
    _S.WAITING: rule("predecessor tasks", _S.DELAYED, _S.SETUP, _S.DEAD),
    _S.DELAYED: rule("the restart delay, and the storage of its state", _S.SETUP, _S.DEAD),
    _S.SETUP: rule("inputs and free file descriptors", _S.STARTING, _S.ENDED),
    _S.STARTING: rule("the driver's answer to the start", _S.ANSWERED),
    _S.ANSWERED: rule(
        "the queue of a cluster, or free file descriptors", _S.STARTING, _S.RUNNING, _S.ENDED
    ),
    _S.REATTACHING: rule("the driver's answer to the re-attachment", _S.RUNNING, _S.ENDED),
    _S.RUNNING: rule("the exit of the task", _S.ENDED),
    _S.ENDED: rule("exec sessions and the last output", _S.DELAYED, _S.DEAD),
    _S.DEAD: rule("a restart by a user", _S.WAITING),
}

# States in which the task may run, although the runner has no handle yet.
SETTLING = frozenset({_S.STARTING, _S.REATTACHING})


def first_state(phase: str) -> RunnerState:
    """Return the state in which a runner begins, from the stored phase."""
    return _S.REATTACHING if phase == TaskPhase.RUNNING else _S.WAITING
