"""The progress of runs, compared with a model, for any order in which elements end."""

import itertools
import os
import random
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from daemon.flow.advance import (
    Advance,
    Elements,
    RunLimits,
    advance,
    cancel,
    is_own_failure,
    timed,
)
from daemon.flow.graph import Graph, Step
from daemon.jobspec.steward_meta.step_values import Allowance, When
from storage.records.flow import ONLY_REASON, FlowRun, FlowStatus, Outcome, RunStep, StepState
from tests.unit.flow.models import outcomes, random_graph

GRAPHS = int(os.environ.get("TEST_GRAPHS", "400"))
RUN = FlowRun(namespace="default", job_id="etl", number=1, version=0, began=1)


class Simulation:
    """A run whose elements end in any order."""

    def __init__(self, graph: Graph, failing: set[str]) -> None:
        self.graph, self.failing = graph, failing
        self.run, self.steps = RUN, dict[str, RunStep]()
        self.ended: dict[str, int] = {}
        self.now = 1
        self.decide()

    def decide(self) -> Advance:
        self.now += 1
        self.last = advance(
            self.graph, self.run, self.steps, self._elements(), now=self.now, meta={}
        )
        self.run, self.steps = self.last.run, {step.name: step for step in self.last.steps}
        return self.last

    def _elements(self) -> Mapping[str, Elements]:
        found = {}
        for name, number in self.ended.items():
            bad = number if name in self.failing else 0
            left = self.graph.by_name[name].count - number
            found[name] = Elements(good=number - bad, failed=bad, at_work=left, exit_code=bad and 7)
        return found

    def at_work(self) -> list[str]:
        return [
            name
            for name in sorted(self.last.wanted_steps)
            for _ in range(self.graph.by_name[name].count - self.ended.get(name, 0))
        ]

    def end(self, name: str) -> None:
        self.ended[name] = self.ended.get(name, 0) + 1


def shuffled(graph: Graph, failing: set[str], rng: random.Random) -> Simulation:
    one = Simulation(graph, failing)
    while at_work := one.at_work():
        for name in rng.sample(at_work, rng.randint(1, len(at_work))):
            one.end(name)
        one.decide()
    return one


def ends(simulation: Simulation) -> dict[str, Outcome | None]:
    return {name: step.outcome for name, step in simulation.steps.items()}


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_run_in_any_order_ends_like_the_model(seed: int) -> None:
    chance = random.Random(seed)
    graph = random_graph(chance)
    failing = {step.name for step in graph.steps if chance.random() < 0.3}
    expected = outcomes(graph, failing)
    results = [shuffled(graph, failing, chance) for _ in range(4)]
    assert [ends(result) for result in results] == [expected] * 4
    is_bad = Outcome.BAD in expected.values()
    wanted = FlowStatus.FAILED if is_bad else FlowStatus.SUCCEEDED
    assert {result.run.status for result in results} == {wanted}


def every_order(
    graph: Graph, failing: set[str], path: tuple[str, ...] = ()
) -> Iterator[Simulation]:
    one = Simulation(graph, failing)
    for name in path:
        one.end(name)
        one.decide()
    choices = sorted({*one.at_work()})
    if not choices:
        yield one
    for name in choices:
        yield from every_order(graph, failing, (*path, name))


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_a_small_run_gives_the_same_steps(seed: int) -> None:
    chance = random.Random(1000 + seed)
    graph = random_graph(chance, most=4)
    failing = {step.name for step in graph.steps if chance.random() < 0.3}
    found = [
        [(step.name, step.state, step.reason, step.outcome) for step in simulation.last.steps]
        for simulation in itertools.islice(every_order(graph, failing), 500)
    ]
    assert all(item == found[0] for item in found)


@pytest.mark.parametrize("seed", range(60))
def test_no_step_starts_before_its_needs_have_ended(seed: int) -> None:
    chance = random.Random(seed)
    graph = random_graph(chance)
    one = Simulation(graph, {step.name for step in graph.steps if chance.random() < 0.3})
    early = []
    while at_work := one.at_work():
        early += [
            (name, need)
            for name in at_work
            for need in graph.by_name[name].needs
            if one.steps[need].outcome is None
        ]
        one.end(chance.choice(at_work))
        one.decide()
    assert early == []


@pytest.mark.parametrize("seed", range(60))
def test_repeated_decision_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    one = Simulation(random_graph(chance), set())
    while at_work := one.at_work():
        one.end(chance.choice(at_work))
        one.decide()
        assert one.decide().changed == ()


# --- runs that a bad step stops ---

STOPS = RunLimits(stops=True, cleanup=10)


class StoppingSimulation(Simulation):
    """A run that the first bad step stops. The tasks of stopped steps end some time later."""

    def __init__(self, graph: Graph, failing: set[str]) -> None:
        self.alive = set[str]()
        self.before_stop: dict[str, Outcome] | None = None
        super().__init__(graph, failing)

    def decide(self) -> Advance:
        self.now += 1
        known = self.steps
        self.last = advance(
            self.graph,
            self.run,
            known,
            self._elements(),
            now=self.now,
            alive=self.alive,
            limits=STOPS,
        )
        self.run, self.steps = self.last.run, {step.name: step for step in self.last.steps}
        if self.run.reason and self.before_stop is None:
            self.before_stop = {
                name: row.outcome
                for name, row in self.steps.items()
                if row.outcome is not None and row.reason != self.run.reason
            }
        self.alive |= {name for name in self.last.wanted_steps if self.left(name)}
        self.alive = {name for name in self.alive if self.left(name)}
        return self.last

    def left(self, name: str) -> int:
        return self.graph.by_name[name].count - self.ended.get(name, 0)

    def kill(self, name: str) -> None:
        self.alive.discard(name)


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_stopped_run_ends_like_the_model(seed: int) -> None:
    chance = random.Random(20_000 + seed)
    graph = random_graph(chance)
    failing = {step.name for step in graph.steps if chance.random() < 0.3}
    one = StoppingSimulation(graph, failing)
    while not one.run.status.has_ended:
        stopped = sorted(one.alive - one.last.wanted_steps)
        if stopped and chance.random() < 0.5:
            one.kill(chance.choice(stopped))
        elif at_work := one.at_work():
            one.end(chance.choice(at_work))
        elif stopped:
            one.kill(stopped[0])
        one.decide()
        wanted = [graph.by_name[name] for name in one.last.wanted_steps]
        if one.run.status == FlowStatus.RUNNING:
            assert not any(map(is_own_failure, one.last.steps))
        else:
            assert all(step.needs and step.when != When.SUCCESS for step in wanted)
    known = one.before_stop
    assert ends(one) == outcomes(graph, failing, known)
    go_on = outcomes(graph, failing)
    assert all(go_on[name] == outcome for name, outcome in (known or {}).items())
    is_bad = Outcome.BAD in ends(one).values()
    assert one.run.status == (FlowStatus.FAILED if is_bad else FlowStatus.SUCCEEDED)
    assert not is_bad or one.run.reason.startswith(("step ", "steps "))


def test_bad_step_stops_the_others_except_handlers_and_cleanup_steps() -> None:
    steps = (
        Step(name="a"),
        Step(name="b", count=2),
        Step(name="c", needs=("b",)),
        Step(name="d", needs=("a",)),
        Step(name="handler", needs=("a",), when=When.FAILURE),
        Step(name="clean", needs=("b",), when=When.ALWAYS),
        Step(name="first", when=When.ALWAYS),
    )
    one = StoppingSimulation(graph(*steps), {"a"})
    one.end("a")
    stopped = one.decide()
    reason = "step a failed"
    assert [(row.name, row.state, row.reason) for row in stopped.steps] == [
        ("a", "failed", "it failed, exit code 7"),
        ("b", "open", ""),
        ("c", "canceled", reason),
        ("d", "skipped", "step a was not successful"),
        ("handler", "open", ""),
        ("clean", "waiting", ""),
        ("first", "open", ""),
    ]
    assert stopped.wanted_steps == {"handler"}
    assert (stopped.run.status, stopped.run.reason) == (FlowStatus.STOPPING, reason)
    assert stopped.due_times == (one.now + 10,)
    one.kill("b")
    one.kill("first")
    cleaning = one.decide()
    assert cleaning.wanted_steps == {"handler", "clean"}
    assert cleaning.steps[1].reason == reason
    for name in ("handler", "clean"):
        one.end(name)
        one.decide()
    assert (one.run.status, one.run.reason) == (FlowStatus.FAILED, reason)


def test_cleanup_after_a_bad_step_has_a_time_limit() -> None:
    steps = (Step(name="a"), Step(name="b", needs=("a",), when=When.FAILURE))
    one = StoppingSimulation(graph(*steps), {"a"})
    one.end("a")
    stopped = one.decide()
    assert timed(stopped.run, STOPS, one.now + 9) == stopped.run
    assert not timed(stopped.run, STOPS, one.now + 10).cleans_up


def test_allowed_failure_does_not_stop_a_run() -> None:
    array = graph(Step(name="a", count=2, allowance=Allowance(1)), Step(name="b"))
    one = StoppingSimulation(array, set())
    steps = {row.name: row for row in one.last.steps}
    found = {"a": Elements(good=1, failed=1), "b": Elements(at_work=1)}
    after = advance(array, RUN, steps, found, now=9, limits=STOPS)
    assert (after.run.status, after.wanted_steps) == (FlowStatus.RUNNING, {"b"})


def test_step_that_was_bad_before_does_not_stop_a_run() -> None:
    one = StoppingSimulation(graph(Step(name="a"), Step(name="b")), {"a"})
    one.end("a")
    bad = one.decide().steps[0]
    again = advance(one.graph, RUN, {"a": bad}, {}, now=9, limits=STOPS)
    assert (again.run.status, again.wanted_steps) == (FlowStatus.RUNNING, {"b"})


def test_last_bad_step_ends_its_run_without_a_stop() -> None:
    one = StoppingSimulation(CHAIN, {"a"})
    one.end("a")
    one.decide()
    assert [row.state for row in one.last.steps] == ["failed", "skipped", "skipped"]
    assert (one.run.status, one.run.reason) == (FlowStatus.FAILED, "step a failed")


def graph(*steps: Step) -> Graph:
    return Graph(steps=steps)


CHAIN = graph(Step(name="a"), Step(name="b", needs=("a",)), Step(name="c", needs=("b",)))


def test_end_of_a_step_starts_the_next_in_the_same_decision() -> None:
    one = Simulation(CHAIN, set())
    assert one.last.wanted_steps == {"a"}
    one.end("a")
    assert one.decide().wanted_steps == {"b"}
    assert one.steps["a"].state == StepState.SUCCEEDED


def test_failure_propagates_through_skipped_steps() -> None:
    one = shuffled(CHAIN, {"a"}, random.Random(0))
    assert [step.state for step in one.last.steps] == ["failed", "skipped", "skipped"]
    assert [step.reason for step in one.last.steps] == [
        "it failed, exit code 7",
        "step a was not successful",
        "step b was skipped",
    ]
    assert one.run.reason == "step a failed"


def test_untaken_branch_does_not_propagate() -> None:
    chosen = graph(
        Step(name="a"),
        Step(name="b", needs=("a",), condition="needs.a.outcome == bad"),
        Step(name="c", needs=("a", "b")),
    )
    one = shuffled(chosen, set(), random.Random(0))
    assert [step.state for step in one.last.steps] == ["succeeded", "skipped", "succeeded"]
    assert one.run.status == FlowStatus.SUCCEEDED


def test_failure_with_a_handler_remains_a_failure() -> None:
    handled = graph(Step(name="a"), Step(name="b", needs=("a",), when=When.FAILURE))
    one = shuffled(handled, {"a"}, random.Random(0))
    assert [step.state for step in one.last.steps] == ["failed", "succeeded"]
    assert one.run.status == FlowStatus.FAILED


def test_undecidable_condition_fails_its_step() -> None:
    odd = graph(
        Step(name="a"), Step(name="b", needs=("a",), condition='needs.missing.outcome == "good"')
    )
    one = shuffled(odd, set(), random.Random(0))
    assert one.steps["b"].state == StepState.FAILED
    assert one.steps["b"].reason.startswith(
        "its condition cannot be evaluated: error finding value in datum"
    )


def test_no_step_starts_while_the_previous_run_ends() -> None:
    held = advance(CHAIN, RUN, {}, {}, now=5, is_held=True)
    assert held.wanted_steps == frozenset()
    assert held.steps[0].state == StepState.HELD
    steps = {step.name: step for step in held.steps}
    assert advance(CHAIN, held.run, steps, {}, now=6).wanted_steps == {"a"}


def test_a_canceled_run_ends_when_its_tasks_have_ended() -> None:
    begun = advance(CHAIN, RUN, {}, {}, now=5)
    steps = {step.name: step for step in begun.steps}
    working = cancel(RUN, steps.values(), {"a"}, reason="stopped", now=6)
    assert (working.wanted_steps, working.run.status) == (frozenset(), FlowStatus.STOPPING)
    assert [step.state for step in working.steps] == ["open", "canceled", "canceled"]
    ended = cancel(working.run, working.steps, (), reason="another", now=7)
    assert (ended.run.status, ended.run.reason) == (FlowStatus.CANCELED, "stopped")
    assert {step.state for step in ended.steps} == {StepState.CANCELED}


ARRAY = Step(name="a", count=4, parallel=2, allowance=Allowance(1))


def progress(step: Step, **elements: int) -> Advance:
    """Return the decision about a step with these elements."""
    opened = {step.name: step for step in advance(graph(step), RUN, {}, {}, now=5).steps}
    return advance(graph(step), RUN, opened, {"a": Elements(**elements)}, now=6)


def test_a_limit_of_elements_is_passed_on() -> None:
    assert progress(ARRAY, good=1, at_work=2).max_elements == {"a": 2}
    assert progress(Step(name="a", count=4), at_work=2).max_elements == {}


def test_step_with_allowed_failures_is_successful() -> None:
    (step,) = progress(ARRAY, good=3, failed=1).steps
    assert (step.state, step.outcome) == (StepState.SUCCEEDED, Outcome.GOOD)
    assert step.reason == "1 of 4 elements failed, which is allowed"
    (step,) = progress(ARRAY, good=2, failed=2, exit_code=9).steps
    assert (step.outcome, step.reason) == (
        Outcome.BAD,
        "2 of 4 elements failed, exit code 9",
    )


def test_too_many_failures_stop_an_array_with_stop_on_failure() -> None:
    stops = Step(name="a", count=9, stops=True)
    working = progress(stops, failed=1, at_work=2)
    assert (working.max_elements, working.steps[0].outcome) == ({"a": 0}, None)
    (ended,) = progress(stops, good=2, failed=1).steps
    assert (ended.state, ended.outcome) == (StepState.FAILED, Outcome.BAD)


def test_failed_element_waits_for_the_others() -> None:
    array = graph(Step(name="a", count=3), Step(name="b", needs=("a",)))
    one = Simulation(array, {"a"})
    one.end("a")
    assert one.decide().steps[0].failed == 1
    assert one.steps["a"].outcome is None
    assert one.steps["b"].state == StepState.WAITING


def test_step_with_queues_requests_slots_and_starts_with_one() -> None:
    queued = graph(Step(name="a"), Step(name="b", needs=("a",), queues=("db", "gpu"), count=3))
    begun = advance(queued, RUN, {}, {}, now=5)
    assert (begun.wanted_steps, begun.ask) == ({"a"}, frozenset())
    known = {one.name: one for one in begun.steps}
    asked = advance(queued, RUN, known, {"a": Elements(good=1)}, now=6)
    assert (asked.wanted_steps, asked.ask) == (frozenset(), {"b"})
    assert asked.steps[1].reason == 'slot: it waits for the queues "db", "gpu"'
    known = {one.name: one for one in asked.steps}
    granted = advance(queued, RUN, known, {"a": Elements(good=1)}, now=7, granted={"b": 1})
    assert (granted.wanted_steps, granted.ask, granted.steps[1].state) == (
        {"b"},
        frozenset(),
        "open",
    )
    known = {one.name: one for one in granted.steps}
    later = advance(queued, RUN, known, {"b": Elements(good=1)}, now=8)
    assert (later.wanted_steps, later.ask) == ({"b"}, frozenset())  # b waits for its next slot


@pytest.mark.parametrize(
    ("found", "most", "reason"),
    [
        ({}, 1, ""),
        ({"at_work": 1}, 1, ""),
        ({"good": 1}, None, "2 of 3 elements were skipped"),
    ],
)
def test_single_element_of_a_limited_run_takes_one_place(
    found: dict[str, int], most: int | None, reason: str
) -> None:
    steps = (Step(name="a", count=3), Step(name="b"))
    alone = msgspec.structs.replace(RUN, only_step="a", only_element=1)
    left_out = RunStep(
        name="b", state=StepState.SKIPPED, outcome=Outcome.NEUTRAL, reason=ONLY_REASON
    )
    begun = advance(
        graph(*steps),
        alone,
        {"b": left_out},
        {"a": Elements(**found)},
        now=5,
        limits=RunLimits(parallel=2),
    )
    assert begun.max_elements.get("a") == most
    assert begun.only == {"a": 0b010}
    assert begun.steps[0].reason == reason
