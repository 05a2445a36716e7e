"""Steps whose elements need those of other steps one by one: validation, and runs against a model."""

import itertools
import os
import random
from collections.abc import Iterator

import pytest

from daemon.flow.advance import Advance, Elements, RunLimits, advance
from daemon.flow.graph import Graph, Step, counterparts, problems, stored_graph, view
from daemon.jobspec.steward_meta.step_values import Allowance, When
from storage.records.flow import FlowRun, Outcome, RunStep
from storage.records.group import TaskGroup
from tests.samples import group, job

GOOD, BAD, NEUTRAL = Outcome.GOOD, Outcome.BAD, Outcome.NEUTRAL
RUN = FlowRun(namespace="default", job_id="etl", number=1, version=0, began=1)
GRAPHS = int(os.environ.get("TEST_GRAPHS", "300"))

Element = tuple[str, int]


def random_graph(chance: random.Random, most: int = 6) -> Graph:
    """Return a graph in which some needs are by element."""
    steps: list[Step] = []
    for number in range(chance.randint(2, most)):
        needs = [one for one in steps if chance.random() < 0.45]
        paired = [one for one in needs if chance.random() < 0.6]
        count = paired[0].count if paired else chance.choice([1, 2, 3])
        each_of = frozenset(one.name for one in paired if one.count == count)
        step = Step(
            name=f"s{number}",
            needs=tuple(one.name for one in needs),
            each_of=each_of,
            when=chance.choice([*When, When.SUCCESS]) if needs else When.SUCCESS,
            count=count,
            allowance=Allowance(chance.choice([0, 0, 1])),
            parallel=chance.choice([None, None, 1]),
        )
        steps.append(step)
    return Graph(steps=tuple(chance.sample(steps, len(steps))))


def model(graph: Graph, failing: set[Element]) -> dict[str, tuple[Outcome, str]]:
    """Return the outcome of each step, and a sign for each element: `+` if it runs, `-` if it runs
    and fails.
    """
    found: dict[str, tuple[Outcome, str]] = {}
    for step in graph.order:
        ran = "".join(_element(step, index, found, failing) for index in range(step.count))
        needs = [found[name][0] for name in step.needs]
        if ran.count("-") > step.allowance.number or (step.when == When.SUCCESS and BAD in needs):
            outcome = BAD
        else:
            outcome = GOOD if ran.strip(" ") else NEUTRAL
        found[step.name] = (outcome, ran)
    return found


def _element(
    step: Step, index: int, known: dict[str, tuple[Outcome, str]], failing: set[Element]
) -> str:
    seen = [
        _counterpart(*known[name], index) if name in step.each_of else known[name][0]
        for name in step.needs
    ]
    begins = {
        When.SUCCESS: not seen or (BAD not in seen and GOOD in seen),
        When.FAILURE: BAD in seen,
        When.ALWAYS: True,
    }[step.when]
    if step.when == When.SUCCESS and any(
        one != GOOD for name, one in zip(step.needs, seen, strict=True) if name in step.each_of
    ):
        begins = False
    if not begins:
        return " "
    return "-" if (step.name, index) in failing else "+"


def _counterpart(outcome: Outcome, ran: str, index: int) -> Outcome:
    if ran[index] == "+":
        return GOOD
    if ran[index] == "-" or outcome == BAD:
        return BAD
    return NEUTRAL


class Simulation:
    """A run whose elements end one by one, in any order."""

    def __init__(
        self, graph: Graph, failing: set[Element], limits: RunLimits | None = None
    ) -> None:
        self.graph, self.failing, self.limits = graph, failing, limits or RunLimits()
        self.run, self.steps = RUN, dict[str, RunStep]()
        self.ended: dict[Element, bool] = {}
        self.begun: set[Element] = set()
        self.now = 1
        self.decide()

    def decide(self) -> Advance:
        self.now += 1
        found = {step.name: self._elements(step) for step in self.graph.steps if self._knows(step)}
        self.last = advance(
            self.graph, self.run, self.steps, found, now=self.now, limits=self.limits
        )
        self.run, self.steps = self.last.run, {step.name: step for step in self.last.steps}
        self._place_all()
        return self.last

    def _place_all(self) -> None:
        for name in self.last.wanted_steps:
            self._place(self.graph.by_name[name])

    def _place(self, step: Step) -> None:
        most = self.last.max_elements.get(step.name, step.count)
        only = self.last.only.get(step.name, (1 << step.count) - 1)
        for index in range(step.count):
            at_work = sum(name == step.name for name, _ in self.begun - self.ended.keys())
            if at_work < most and only >> index & 1:
                self.begun.add((step.name, index))

    def _knows(self, step: Step) -> bool:
        """Return whether the store still has the elements of a step for a decision."""
        ended = {name for name, row in self.steps.items() if row.outcome is not None}
        return step.name not in ended or any(
            step.name in one.each_of for one in self.graph.steps if one.name not in ended
        )

    def _elements(self, step: Step) -> Elements:
        mine = {index: good for (name, index), good in self.ended.items() if name == step.name}
        good = [index for index, is_good in mine.items() if is_good]
        bad = [index for index, is_good in mine.items() if not is_good]
        return Elements(
            good=len(good),
            failed=len(bad),
            at_work=sum(name == step.name for name, _ in self.begun - self.ended.keys()),
            good_bits=sum(1 << index for index in good),
            failed_bits=sum(1 << index for index in bad),
        )

    def at_work(self) -> list[Element]:
        return sorted(self.begun - self.ended.keys())

    def end(self, element: Element) -> None:
        self.ended[element] = element not in self.failing

    def result(self) -> dict[str, tuple[Outcome | None, str]]:
        signs = {True: "+", False: "-", None: " "}
        return {
            step.name: (
                self.steps[step.name].outcome,
                "".join(signs[self.ended.get((step.name, at))] for at in range(step.count)),
            )
            for step in self.graph.steps
        }


def shuffled(graph: Graph, failing: set[Element], chance: random.Random) -> Simulation:
    one = Simulation(graph, failing)
    while at_work := one.at_work():
        for element in chance.sample(at_work, chance.randint(1, len(at_work))):
            one.end(element)
        one.decide()
    return one


def begun_by_model(one: Simulation, result: dict[str, tuple[Outcome, str]]) -> set[Element]:
    """Return the elements that have begun, or begin now, given the `result` of the run.

    The ready elements begin in the order of the steps in the file, then of their indexes.
    """
    begun = set(one.begun)
    has_ended = {name: row.outcome is not None for name, row in one.steps.items()}
    for step in one.graph.steps:
        for index in range(step.count):
            is_ready = result[step.name][1][index] != " " and all(
                has_ended[need] or (need in step.each_of and (need, index) in one.ended)
                for need in step.needs
            )
            active = begun - one.ended.keys()
            own = sum(name == step.name for name, _ in active)
            has_place = len(active) < (one.limits.parallel or 99) and own < (step.parallel or 99)
            if is_ready and has_place:
                begun.add((step.name, index))
    return begun


class LimitedSimulation(Simulation):
    """A simulation that compares the begun elements with the model after each decision."""

    def __init__(self, graph: Graph, failing: set[Element], most: int) -> None:
        self.expected = model(graph, failing)
        self.wrong: list[set[Element]] = []
        super().__init__(graph, failing, RunLimits(parallel=most))

    def _place_all(self) -> None:
        expected = begun_by_model(self, self.expected)
        super()._place_all()
        if self.begun != expected:
            self.wrong.append(self.begun ^ expected)


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_elements_of_a_limited_run_begin_in_the_order_of_the_job(seed: int) -> None:
    chance, graph, failing = cases(9000 + seed)
    one = LimitedSimulation(graph, failing, chance.randint(1, 3))
    most_active = len(one.at_work())
    while at_work := one.at_work():
        for element in chance.sample(at_work, chance.randint(1, len(at_work))):
            one.end(element)
        one.decide()
        most_active = max(most_active, len(one.at_work()))
        assert one.decide().changed == ()
    assert one.wrong == []
    assert most_active <= (one.limits.parallel or 0)
    assert one.result() == one.expected
    assert one.run.status.has_ended


def cases(seed: int, most: int = 6) -> tuple[random.Random, Graph, set[Element]]:
    chance = random.Random(seed)
    graph = random_graph(chance, most)
    elements = [(step.name, index) for step in graph.steps for index in range(step.count)]
    return chance, graph, {element for element in elements if chance.random() < 0.3}


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_elements_in_any_order_run_like_the_model(seed: int) -> None:
    chance, graph, failing = cases(seed)
    expected = model(graph, failing)
    for _ in range(3):
        one = shuffled(graph, failing, chance)
        assert one.result() == expected
        assert one.run.status.has_ended


def every_order(
    graph: Graph, failing: set[Element], path: tuple[Element, ...] = ()
) -> Iterator[Simulation]:
    one = Simulation(graph, failing)
    for element in path:
        one.end(element)
        one.decide()
    if not (choices := one.at_work()):
        yield one
    for element in choices:
        yield from every_order(graph, failing, (*path, element))


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_a_small_run_gives_the_same_elements(seed: int) -> None:
    _, graph, failing = cases(5000 + seed, most=3)
    expected = model(graph, failing)
    for one in itertools.islice(every_order(graph, failing), 300):
        assert one.result() == expected


def test_element_starts_after_its_counterpart() -> None:
    steps = (Step(name="a", count=3), Step(name="b", count=3, needs=("a",), each_of=frozenset("a")))
    one = Simulation(Graph(steps=steps), set())
    assert one.last.wanted_steps == {"a"}
    one.end(("a", 1))
    after = one.decide()
    assert (after.wanted_steps, after.only) == ({"a", "b"}, {"b": 0b010})
    assert one.begun - {("a", index) for index in range(3)} == {("b", 1)}


# --- jobs ---


def load(count: int = 1, **meta: str) -> TaskGroup:
    return group("load", count=count, meta={f"steward_{key}": text for key, text in meta.items()})


def check(count: int = 1, needs: str = "load[i]", **meta: str) -> TaskGroup:
    keys = {f"steward_{key}": text for key, text in {"needs": needs, **meta}.items()}
    return group("check", count=count, meta=keys)


def test_step_has_the_element_count_of_its_need() -> None:
    last = group("last", meta={"steward_needs": "check[i]"})
    found = stored_graph(job("etl", load(4), check(), last, type="batch"))
    assert [(step.count, step.each_of, step.inherits) for step in found.steps] == [
        (4, frozenset(), ""),
        (4, {"load"}, "load"),
        (4, {"check"}, "check"),
    ]
    shown = view(job("etl", load(4), check(), type="batch"))
    assert [(edge.source, edge.to, edge.is_by_element) for edge in shown.edges] == [
        ("load", "check", True)
    ]


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (load(5), check(3), 'Task group check needs "load[i]" but has 3 elements and load has 5'),
        (
            load(5),
            check(needs="load[i], load"),
            'Task group check needs "load" both as a whole and by element',
        ),
        (load(), check(needs="*[i]"), '"*" in steward_needs must stand alone'),
        (
            load(2),
            check(**{"if": "needs.load.failed > 0"}),
            'Task group check: steward_if refers to "load", which the group needs element by element',
        ),
        (
            load(),
            check(needs="lead[i]"),
            'Task group check needs "lead", which is not a group of this job; did you mean "load"?',
        ),
    ],
)
def test_invalid_needs_by_element_are_refused(
    first: TaskGroup, second: TaskGroup, error: str
) -> None:
    assert list(problems(job("etl", first, second, type="batch"))) == [error]


def test_element_with_another_index_cannot_be_referenced() -> None:
    named = check(for_each='["${output.load[1].path}"]')
    found = list(problems(job("etl", load(1), named, type="batch")))
    assert found == [
        'Task group check refers to output "load[1].path", but its elements wait only for the same '
        "element of load: write load.path"
    ]


def test_counterparts_exclude_steps_completed_by_a_whole_need() -> None:
    steps = (
        Step(name="a", count=2),
        Step(name="b", count=2, needs=("a",), each_of=frozenset("a")),
        Step(name="c", count=2, needs=("b",), each_of=frozenset("b")),
        Step(name="w", needs=("a",)),
        Step(name="d", count=2, needs=("c", "w"), each_of=frozenset("c")),
    )
    graph = Graph(steps=steps)
    assert counterparts(graph, {"c", "d"}) == {"c": {"a", "b"}, "d": {"b", "c"}}
