"""The states of an allocation runner, and the changes between them. No I/O.

The states are not stored. Each runner begins with `WAITING`, and allocations that an earlier daemon
started pass the first states immediately.
"""

from enum import Enum, auto

from daemon.runner.core.state_machine import StateTable, rule


class AllocState(Enum):
    """The states of an allocation runner, in order."""

    WAITING = auto()
    PREPARING = auto()
    RUNNING = auto()
    LEAVING = auto()  # one task ended, and its end stops the others
    STOPPING = auto()  # the allocation is no longer desired
    CLEANING = auto()
    FAILED = auto()  # the runner itself has a defect
    RELEASED = auto()  # the daemon exits, and the tasks keep running
    ENDED = auto()


_S = AllocState

TABLE: StateTable[AllocState] = {
    _S.WAITING: rule("the end of its predecessors", _S.PREPARING, _S.FAILED, _S.RELEASED),
    _S.PREPARING: rule("its directories", _S.RUNNING, _S.FAILED, _S.RELEASED),
    _S.RUNNING: rule(
        "the end of its tasks, or a reason to stop them",
        *(_S.LEAVING, _S.STOPPING, _S.CLEANING, _S.FAILED, _S.RELEASED),
    ),
    _S.LEAVING: rule(
        "the end of the other tasks", _S.STOPPING, _S.CLEANING, _S.FAILED, _S.RELEASED
    ),
    _S.STOPPING: rule(
        "services, shutdown delays and kill timeouts", _S.CLEANING, _S.FAILED, _S.RELEASED
    ),
    _S.CLEANING: rule("the end of processes that no task owns", _S.ENDED, _S.FAILED, _S.RELEASED),
    _S.FAILED: rule("the end of all its processes", _S.ENDED, _S.RELEASED),
    _S.RELEASED: rule("nothing"),
    _S.ENDED: rule("nothing"),
}
