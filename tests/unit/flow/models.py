"""Random workflows, and a model that computes their outcomes."""

import random
from collections.abc import Mapping

from daemon.flow.graph import Graph, Step
from daemon.jobspec.steward_meta.step_values import When
from storage.records.flow import Outcome

GOOD, BAD, NEUTRAL = Outcome.GOOD, Outcome.BAD, Outcome.NEUTRAL


def random_graph(rng: random.Random, most: int = 9) -> Graph:
    """Return a graph without cycles, whose steps are in any order in the file."""
    names = [f"s{number}" for number in range(rng.randint(1, most))]
    steps = []
    for number, name in enumerate(names):
        needs = tuple(name for name in names[:number] if rng.random() < 0.35)
        steps.append(
            Step(
                name=name,
                needs=needs,
                when=rng.choice([*When]) if needs else When.SUCCESS,
                condition=_condition(rng, needs),
                count=rng.choice([1, 1, 1, 2, 3, 0]),
            )
        )
    rng.shuffle(steps)
    return Graph(steps=tuple(steps))


def _condition(rng: random.Random, needs: tuple[str, ...]) -> str:
    if not needs or rng.random() < 0.7:
        return ""
    return f"needs.{rng.choice(needs)}.outcome != {rng.choice([*Outcome])}"


def outcomes(
    graph: Graph, failing: set[str], before_stop: Mapping[str, Outcome] | None = None
) -> dict[str, Outcome]:
    """Return how each step ends if the steps in `failing` fail whenever they run.

    If a bad step stopped the run, `before_stop` has the steps that had ended by then. Of the other
    steps, only failure handlers and clean-up steps still run.
    """
    found = _at_stop(graph, before_stop)

    def of(step: Step) -> Outcome:
        needs = [outcome(name) for name in step.needs]
        if step.when == When.SUCCESS and BAD in needs:
            return BAD
        if step.when == When.SUCCESS and needs and GOOD not in needs:
            return NEUTRAL
        if step.when == When.FAILURE and BAD not in needs:
            return NEUTRAL
        if step.condition:
            name, word = step.condition.removeprefix("needs.").split(".outcome != ")
            if outcome(name) == word:
                return NEUTRAL
        if not step.count:
            return NEUTRAL
        return BAD if step.name in failing else GOOD

    def outcome(name: str) -> Outcome:
        if name not in found:
            found[name] = of(graph.by_name[name])
        return found[name]

    return {step.name: outcome(step.name) for step in graph.steps}


def _at_stop(graph: Graph, before_stop: Mapping[str, Outcome] | None) -> dict[str, Outcome]:
    """Return the outcomes of a stopped run that no later decision changes, by step."""
    if before_stop is None:
        return {}
    canceled = [step.name for step in graph.steps if step.when == When.SUCCESS or not step.needs]
    return {**dict.fromkeys(canceled, BAD), **before_stop}
