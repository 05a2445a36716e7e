"""The work of a plan grows in proportion to the groups of a job."""

import sys
from types import FrameType
from typing import Any

import msgspec

from daemon.evals.deployment_health import decide_deployment
from storage.records.constraints import Constraint
from storage.records.job import Job
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import ROLLING, World

FEW, TIMES = 40, 4
IMPOSSIBLE = Constraint(l_target="${attr.kernel.name}", operand="=", r_target="plan9")


class LineCount:
    """The number of lines that Python executes while the block runs."""

    def __init__(self) -> None:
        self.lines = 0

    def _trace(self, _frame: FrameType, event: str, _value: Any) -> Any:
        self.lines += event == "line"
        return self._trace

    def __enter__(self) -> "LineCount":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def wide(groups: int, **fields: Any) -> Job:
    each = [group(f"g{number}", task(), update=ROLLING, **fields) for number in range(groups)]
    return job("wide", *each)


def lines_of_plan(groups: int) -> int:
    """Return the number of lines that Python executes to evaluate a job waiting for capacity."""
    world = World()
    world.run(wide(groups, constraints=[IMPOSSIBLE]))
    with LineCount() as count:
        plan = world.dry_run()
    assert len(plan.failed) == groups
    return count.lines


def lines_of_update(groups: int) -> int:
    """Return the lines of an evaluation that gives each group a canary."""
    world = World()
    world.run(wide(groups))
    world.settle()
    canaries = msgspec.structs.replace(ROLLING, canary=1)
    changed = [
        group(f"g{number}", task(config={"command": "x"}), update=canaries)
        for number in range(groups)
    ]
    world.register(job("wide", *changed))
    with LineCount() as count:
        world.dry_run()
    return count.lines


def lines_of_watch(groups: int) -> int:
    """Return the number of lines that Python executes for a decision about a deployment."""
    world = World()
    world.run(wide(groups, constraints=[IMPOSSIBLE]))
    with LineCount() as count:
        decide_deployment(world.deployments[-1], [], world.job, NOW)
    return count.lines


def test_plan_of_many_groups_is_linear() -> None:
    for lines in (lines_of_plan, lines_of_update, lines_of_watch):
        lines(2)  # imports
        assert lines(TIMES * FEW) <= 1.3 * TIMES * lines(FEW), lines.__name__
