"""Properties of every plan after any history, tested with generated histories."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as some

from daemon.scheduler.alloc_sets import UPDATED
from daemon.scheduler.rollout import max_parallel
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, NodeState, Plan
from daemon.text.placement_message import describe_metric
from storage.records.allocation import Allocation, ClientStatus
from storage.records.base import SECOND
from storage.records.deployment import DeploymentStatus
from storage.records.evaluation import Evaluation
from storage.records.group import ReschedulePolicy, TaskGroup, Update
from storage.records.job import Job
from storage.records.node import NodeStatus
from storage.records.task import Network, Port, Resources, Task
from tests.samples import group, job, task
from tests.unit.scheduler.world import World, ids, small

# ---- generated jobs ------------------------------------------------------------------------------

STATIC = Network(mode="host", reserved_ports=[Port(label="web", value=8080)])
DYNAMIC = Network(mode="host", dynamic_ports=[Port(label="a"), Port(label="b")])

# Each choice of a strategy takes longer than most decisions. So one choice among all combinations
# replaces one choice per field. The simplest combination comes first.
UPDATES = [
    Update(max_parallel=max_parallel, canary=canary, auto_promote=auto_promote)
    for max_parallel, canary, auto_promote in product(range(4), (0, 0, 1, 2), (False, True))
]
policies = some.sampled_from(
    [
        ReschedulePolicy(),
        ReschedulePolicy(delay=5 * SECOND, delay_function="constant", unlimited=True),
        ReschedulePolicy(attempts=1, interval=3600 * SECOND, delay=1 * SECOND),
        ReschedulePolicy(delay=0, delay_function="constant", unlimited=True),
    ]
)


@cache
def _tasks(*, scarce: bool) -> list[Task]:
    return [
        task(
            config={"command": command},
            resources=Resources(cpu=cpu, memory_mb=memory_mb, cores=cores),
        )
        for cores, memory_mb, cpu, command in product(
            (0, 0, 0, 1) if scarce else (0,), (10, 40), (10, 30), ("a", "b")
        )
    ]


@cache
def _group(name: str, kind: str, *, scarce: bool) -> some.SearchStrategy[TaskGroup]:
    rolling = kind in ("service", "system")
    return some.builds(
        group,
        some.just(name),
        some.sampled_from(_tasks(scarce=scarce)),
        count=some.integers(0, 1 if kind == "system" else 4),
        networks=some.sampled_from([None, [DYNAMIC], *([[STATIC]] if scarce else [])]),
        update=some.sampled_from(UPDATES) if rolling else some.none(),
        reschedule_policy=policies if kind in ("service", "batch") else some.none(),
    )


def jobs(kind: str, *, scarce: bool) -> some.SearchStrategy[Job]:
    """Return the strategy for jobs.

    If `scarce`, some jobs request a resource that a node has only once.
    """
    return some.builds(
        job,
        some.just("web"),
        _group("web", kind, scarce=scarce),
        _group("db", kind, scarce=scarce),
        type=some.just(kind),
        all_at_once=some.booleans(),
        priority=some.integers(49, 51),
    )


# ---- generated histories -------------------------------------------------------------------------


def _someone(world: World, number: int) -> Allocation | None:
    live = world.running()
    return live[number % len(live)] if live else None


def _start(world: World, number: int) -> None:
    world.start(healthy=True if number % 2 else None)


def _fail(world: World, number: int) -> None:
    if one := _someone(world, number):
        world.fail(one)


def _complete(world: World, number: int) -> None:
    if one := _someone(world, number):
        world.complete(one)


def _migrate(world: World, number: int) -> None:
    if one := _someone(world, number):
        world.mark(one, migrate=True)


def _force(world: World, number: int) -> None:
    for alloc in world.allocations.values():
        if alloc.client_status == ClientStatus.FAILED and alloc.desired_status == "run":
            world.mark(alloc, force_reschedule=True)
            return


def _unhealthy(world: World, number: int) -> None:
    world.set_health(healthy=False)


def _stop(world: World, number: int) -> None:
    if world.job:
        world.register(msgspec.structs.replace(world.job, stop=not world.job.stop))


def _promote(world: World, number: int) -> None:
    if world.deployments and "web" in world.deployment.task_groups:
        world.promote()


def _deployment(status: DeploymentStatus) -> Callable[[World, int], None]:
    def act(world: World, number: int) -> None:
        if world.deployments and world.deployment.active:
            world.set_deployment(status)

    return act


def _node(status: NodeStatus) -> Callable[[World, int], None]:
    def act(world: World, number: int) -> None:
        name = sorted(world.nodes)[number % len(world.nodes)]
        world.nodes[name] = msgspec.structs.replace(world.nodes[name], status=status)

    return act


def _wait(world: World, number: int) -> None:
    world.wait(number)


ACTS = [
    _start,
    _start,
    _fail,
    _complete,
    _migrate,
    _force,
    _unhealthy,
    _stop,
    _promote,
    _deployment(DeploymentStatus.PAUSED),
    _deployment(DeploymentStatus.RUNNING),
    _deployment(DeploymentStatus.FAILED),
    _node(NodeStatus.DOWN),
    _node(NodeStatus.READY),
    _wait,
]

PEACEFUL = [
    _start,
    _complete,
    _migrate,
    _stop,
    _deployment(DeploymentStatus.PAUSED),
    _node(NodeStatus.DOWN),
    _node(NodeStatus.READY),
    _wait,
]


def _nodes(cpu: some.SearchStrategy[int], memory: some.SearchStrategy[int]) -> Any:
    made = some.lists(some.builds(small, cpu=cpu, memory=memory), min_size=1, max_size=3)
    return made.map(
        lambda known: [msgspec.structs.replace(one, id=f"n{n}") for n, one in enumerate(known)]
    )


def histories(kinds: str, *, peaceful: bool = False) -> Any:
    """Return the strategy for histories of one job: its nodes, its first version and later events.

    In a peaceful history nothing fails, and the capacity is sufficient.
    """
    size = some.just(100_000) if peaceful else some.integers(20, 200)
    acts = some.tuples(some.sampled_from(PEACEFUL if peaceful else ACTS), some.integers(0, 9))

    def of_kind(kind: str) -> Any:
        versions = jobs(kind, scarce=not peaceful)
        later = some.lists(some.one_of(acts, versions), max_size=12)
        return some.tuples(_nodes(size, size), versions, later)

    return some.sampled_from(kinds.split()).flatmap(of_kind)


ALL = "service batch system sysbatch"


class Step(msgspec.Struct):
    """One decision of a history: its input, its plan, and the result."""

    before: ClusterState
    evaluation: Evaluation
    plan: Plan
    after: ClusterState
    now: int

    def stopped(self) -> list[Allocation]:
        """Return the stopped allocations of the plan that held resources, as they were before."""
        before = {alloc.id: alloc for alloc in self.before.allocations}
        return [
            before[alloc.id]
            for alloc in self.plan.change
            if alloc.terminal and not before[alloc.id].terminal
        ]


def play(history: Any) -> tuple[World, list[Step]]:
    """Apply a history; after each event the job is evaluated."""
    nodes, first, later = history
    world, steps = World(*nodes), []
    for act in (first, *later):
        if isinstance(act, Job):
            world.register(act)
        else:
            act[0](world, act[1])
        before, evaluation = world.state(), world.evaluation()
        plan = world.evaluate(evaluation)
        steps.append(Step(before, evaluation, plan, world.state(), world.now))
    return world, steps


# ---- properties of all decisions -------------------------------------------------------------------


def cpu(alloc: Allocation) -> int:
    return sum(task.cpu.cpu_shares for task in alloc.placement.resources.tasks.values())


def memory(alloc: Allocation) -> int:
    return sum(task.memory.memory_mb for task in alloc.placement.resources.tasks.values())


def cores(alloc: Allocation) -> list[int]:
    tasks = alloc.placement.resources.tasks.values()
    return [core for task in tasks for core in task.cpu.reserved_cores or ()]


@settings(max_examples=200, deadline=None)
@given(histories(ALL))
def test_plan_never_exceeds_the_capacity_of_a_node(history: Any) -> None:
    _, steps = play(history)
    excess = [
        (step.plan, node.node.id)
        for step in steps
        for node in step.before.nodes
        if _excess(step, node)
    ]
    assert excess == []


def _excess(step: Step, before: NodeState) -> bool:
    """Return whether placements on a node exceed its free and freed resources."""
    node = before.node
    placed = [alloc for alloc in step.plan.place if alloc.node_id == node.id]
    stopped = [item for item in step.stopped() if item.node_id == node.id]
    free = [
        node.node_resources.cpu.cpu_shares - before.cpu + sum(map(cpu, stopped)),
        node.node_resources.memory.memory_mb - before.memory + sum(map(memory, stopped)),
    ]
    taken = [sum(map(cpu, placed)), sum(map(memory, placed))]
    return bool(placed) and any(one > other for one, other in zip(taken, free, strict=True))


@settings(max_examples=200, deadline=None)
@given(histories(ALL))
def test_desired_allocations_of_a_node_share_neither_ports_nor_cores(history: Any) -> None:
    world, _ = play(history)
    held: Counter[Any] = Counter()
    for alloc in world.running():
        held.update((alloc.node_id, port) for port in alloc.placement.resources.ports)
        held.update((alloc.node_id, "core", core) for core in cores(alloc))
    assert [what for what, times in held.items() if times > 1] == []


@settings(max_examples=200, deadline=None)
@given(histories(ALL))
def test_repeated_evaluation_changes_nothing(history: Any) -> None:
    _, steps = play(history)
    last = steps[-1]
    again = schedule(last.after, last.evaluation, now=last.now, ids=ids())
    assert (again.place, again.change, again.deployments, again.evaluations) == ((), (), (), ())


@settings(max_examples=100, deadline=None)
@given(histories(ALL))
def test_the_same_arguments_give_the_same_plan(history: Any) -> None:
    _, steps = play(history)
    last = steps[-1]
    plans = [schedule(last.before, last.evaluation, now=last.now, ids=ids()) for _ in range(2)]
    assert plans[0] == plans[1]


@settings(max_examples=200, deadline=None)
@given(histories("service batch"))
def test_number_of_allocations_never_exceeds_count_and_canaries(history: Any) -> None:
    _, steps = play(history)
    surplus = [
        group.name
        for step in steps
        if (job := step.after.job) is not None and not job.stop
        for group in job.task_groups or ()
        if len(_without_canaries(step.after, group.name)) > group.count
    ]
    assert surplus == []


def _without_canaries(state: ClusterState, group: str) -> list[Allocation]:
    groups = state.deployment.task_groups if state.deployment else {}
    canaries = {
        placed_canary
        for known in groups.values()
        if not known.promoted
        for placed_canary in known.placed_canaries or ()
    }
    return [
        alloc
        for alloc in state.allocations
        if alloc.task_group == group and not alloc.terminal and alloc.id not in canaries
    ]


@settings(max_examples=200, deadline=None)
@given(histories("service system"))
def test_rollout_never_exceeds_its_parallel_limit(history: Any) -> None:
    _, steps = play(history)
    placed_by = {alloc.id: alloc.deployment_id for step in steps for alloc in step.plan.place}
    beyond = [
        group.name
        for step in steps
        if (job := step.before.job) is not None and not job.stop
        for group in job.task_groups or ()
        if max_parallel(group) and _replaces(step, group)
        if len(_on_their_way(step, group, placed_by)) > max_parallel(group)
    ]
    assert beyond == []


def _replaces(step: Step, group: TaskGroup) -> bool:
    return any(
        alloc.task_group == group.name and alloc.desired.description == UPDATED
        for alloc in step.plan.change
    )


def _on_their_way(step: Step, group: TaskGroup, placed_by: dict[str, str]) -> list[Allocation]:
    """Return the placed allocations of the deployment that are desired after the plan and not known
    to be healthy.

    An allocation updated in place runs the whole time.
    """
    return [
        alloc
        for alloc in step.after.allocations
        if placed_by[alloc.id] == step.plan.deployment_id
        and alloc.task_group == group.name
        and not alloc.terminal
        and (alloc.health is None or alloc.health.healthy is None)
    ]


gentle = some.builds(
    Update,
    max_parallel=some.integers(1, 3),
    canary=some.integers(0, 2),
    auto_promote=some.booleans(),
)


def _promote_well(world: World, number: int) -> None:
    """Promote canaries if all of them are healthy."""
    state = world.deployment.task_groups.get("web")
    if state is None or len(state.placed_canaries or ()) < state.desired_canaries:
        return
    canaries = [world.allocations[placed_canary] for placed_canary in state.placed_canaries or ()]
    if all(canary.health is not None and canary.health.healthy for canary in canaries):
        world.promote()


# New versions and the events between them; nothing fails.
rollouts = some.lists(
    some.one_of(
        some.builds(lambda value: task(env={"A": value}), some.sampled_from("abc")),
        some.sampled_from([_start, _start, _wait, _promote_well]),
        some.sampled_from([DeploymentStatus.PAUSED, DeploymentStatus.RUNNING]).map(_deployment),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(some.integers(1, 6), gentle, rollouts, some.integers(0, 9))
def test_update_preserves_the_required_number_of_healthy_allocations(
    count: int, update: Update, course: list[Any], number: int
) -> None:
    world, well = World(), set[str]()
    world.run(job("web", group("web", count=count, update=update)))
    world.settle()
    for event in course:
        # A healthy allocation that is updated in place counts as healthy all the time.
        well |= {alloc.id for alloc in world.running() if alloc.health and alloc.health.healthy}
        if not isinstance(event, Task):
            event(world, number)
            world.progress()
        elif _there(world, well) >= count:
            world.run(job("web", group("web", event, count=count, update=update)))
        well |= {alloc.id for alloc in world.running() if alloc.health and alloc.health.healthy}
        assert _there(world, well) >= count - update.max_parallel


def _there(world: World, well: set[str]) -> int:
    """Return the number of desired allocations that run and whose ID is in `well`."""
    return sum(
        alloc.client_status == ClientStatus.RUNNING and alloc.id in well
        for alloc in world.running()
    )


@settings(max_examples=200, deadline=None)
@given(histories(ALL))
def test_unplaced_group_is_explained_and_blocked(history: Any) -> None:
    _, steps = play(history)
    metrics = [metric for step in steps for metric in step.plan.failed.values()]
    unexplained = [
        metric
        for metric in metrics
        if metric.nodes_filtered + metric.nodes_exhausted != metric.nodes_evaluated
    ]
    forgotten = [
        step.plan for step in steps if any(step.plan.queued.values()) and step.plan.blocked is None
    ]
    assert unexplained == []
    assert [
        describe_metric(metric)
        for metric in metrics
        if describe_metric(metric).startswith("none of")
    ] == []
    assert forgotten == []


@settings(max_examples=200, deadline=None)
@given(histories("service batch", peaceful=True))
def test_counts_are_reached_with_sufficient_capacity(history: Any) -> None:
    world, _ = play(history)
    _calm_down(world)
    job = world.job
    assert job is not None
    short = {
        group.name: (group.count, _done(world, group))
        for group in job.task_groups or ()
        if group.count != _done(world, group)
    }
    assert short == {}
    names = world.names()
    assert len(set(names)) == len(names)


def _calm_down(world: World) -> None:
    """Make the nodes available and the job desired, and continue until nothing changes."""
    for name, known in world.nodes.items():
        world.nodes[name] = msgspec.structs.replace(known, status=NodeStatus.READY)
    assert world.job is not None
    if world.job.stop:
        world.register(msgspec.structs.replace(world.job, stop=False))
    world.evaluate()
    for _ in range(3):
        if world.deployments and world.deployment.active:
            world.set_deployment(DeploymentStatus.RUNNING)
            for name, state in world.deployment.task_groups.items():
                if state.desired_canaries and not state.promoted:
                    world.promote(name)
        world.settle()


def _done(world: World, group: TaskGroup) -> int:
    """Return how many allocations of a group run or have completed in the current version."""
    assert world.job is not None
    return sum(
        alloc.desired_status == "run"
        and alloc.task_group == group.name
        and alloc.job_version == world.job.version
        and alloc.client_status
        in (ClientStatus.RUNNING, *([ClientStatus.COMPLETE] if world.job.type == "batch" else []))
        for alloc in world.allocations.values()
    )


@settings(max_examples=100, deadline=None)
@given(histories("system", peaceful=True))
def test_system_job_runs_once_on_every_node(history: Any) -> None:
    world, _ = play(history)
    _calm_down(world)
    assert world.job is not None
    wanted = sorted(
        (node_id, group.name)
        for node_id in world.nodes
        for group in world.job.task_groups or ()
        if group.count
    )
    there = sorted((alloc.node_id, alloc.task_group) for alloc in world.running())
    assert there == wanted
