"""The tables of states: every walk ends, and no change outside of a table is possible."""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from daemon.runner.alloc import alloc_states, task_states
from daemon.runner.alloc.alloc_states import AllocState
from daemon.runner.alloc.task_states import RunnerState
from daemon.runner.core.state_machine import IllegalTransition, StateMachine, StateTable
from daemon.runner.drivers.slurm import attempt_states
from storage.records.allocation import TaskPhase
from storage.records.cluster_run import RunStatus

PAGE = (Path(__file__).parents[3] / "docs/architecture.md").read_text()

# Each machine: its table, the states in which it may begin, and the states in which it may remain.
MACHINES: dict[str, tuple[StateTable[Any], set[Any], set[Any]]] = {
    "task": (
        task_states.TABLE,
        {task_states.first_state(phase) for phase in TaskPhase},
        {RunnerState.DEAD},
    ),
    "allocation": (
        alloc_states.TABLE,
        {AllocState.WAITING},
        {AllocState.ENDED, AllocState.RELEASED},
    ),
    "attempt in a cluster": (attempt_states.TABLE, {RunStatus.SUBMITTING}, {RunStatus.VOID}),
}
CHANGES = [
    pytest.param(table, before, after, id=f"{name}:{before.name}-{after.name}")
    for name, (table, _, _) in MACHINES.items()
    for before in table
    for after in type(before)
    if after is not before
]


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> tuple[StateTable[Any], set[Any], set[Any]]:
    return MACHINES[request.param]


def reached(table: StateTable[Any], begin: Iterable[Enum]) -> set[Enum]:
    """Return the states that a walk from any of these states can reach."""
    found, left = set[Enum](), list(begin)
    while left:
        state = left.pop()
        if state not in found:
            found.add(state)
            left += table[state].then
    return found


@pytest.mark.parametrize(("table", "before", "after"), CHANGES)
def test_transition_is_permitted_exactly_if_the_table_has_it(
    table: StateTable[Any], before: Enum, after: Enum
) -> None:
    walker = StateMachine("walker", table, before)
    if after in table[before].then:
        walker.enter(after)
        assert walker.state is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before.name} cannot be followed by"):
            walker.enter(after)
        assert walker.state is before


def test_table_has_a_row_and_a_wait_for_each_state(machine: Any) -> None:
    table, _, _ = machine
    assert set(table) == set(type(next(iter(table))))
    assert all(row.waits_for for row in table.values())


def test_each_state_is_reachable_and_has_a_path_to_an_end(machine: Any) -> None:
    table, begin, ends = machine
    assert reached(table, begin) == set(table)
    assert all(reached(table, [state]) & ends for state in table)


def test_current_state_can_be_entered_again(machine: Any) -> None:
    table, _, _ = machine
    for state in table:
        walker = StateMachine("walker", table, state)
        walker.enter(state)
        assert walker.state is state


@pytest.mark.parametrize("name", MACHINES)
def test_the_documentation_shows_each_table(name: str) -> None:
    """A row of the page: state, wait, next states in the order of the enumeration."""
    for state, row in MACHINES[name][0].items():
        then = [f"`{item.name}`" for item in type(state) if item in row.then]
        assert f"| `{state.name}` | {row.waits_for} | {', '.join(then) or 'none'} |" in PAGE


def test_transition_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="steward.runner")
    StateMachine("task web", task_states.TABLE, RunnerState.WAITING).enter(RunnerState.SETUP)
    assert caplog.messages == ["task web: changed from WAITING to SETUP"]
