"""Invariants of a daemon: at any time, and after it has settled.

Each function yields violations as texts.
"""

from collections.abc import Iterator
from itertools import pairwise

from daemon.evals.cluster_state import load_cluster_state
from daemon.evals.explain import explain_job
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.periodic import next_slot
from daemon.launcher import alloc_removal
from daemon.scheduler.schedule import schedule
from storage.queries import allocations, children, deployments, evaluations, jobs, nodes, periodic
from storage.queries.evaluations import FreedResources
from storage.queries.invariants import find_violations
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, DesiredStatus
from storage.records.deployment import Deployment, DeploymentStatus
from storage.records.evaluation import EvalStatus, Trigger
from storage.records.explanation import Cause
from storage.records.job import Job, JobType
from tests.simulation.world import World

# Complete list of permanent reasons for a missing allocation after settling.
_LASTING = {
    Cause.STOPPED,
    Cause.CLOCK,
    Cause.DISPATCH,
    Cause.CHILDREN,
    Cause.PLACE,
    Cause.LIMIT,
    Cause.DEPLOYMENT,
}

# Limit for the versions of a job in a normal run: each operation can create a version, and a
# rollback another one.
_MOST_VERSIONS = 500


def always(world: World, acknowledged: int) -> list[str]:
    """Return the present violations; `acknowledged` is the index of the last acknowledged write."""

    def look(db: ReadSnapshot) -> Iterator[str]:
        yield from find_violations(db)
        yield from _too_full(db, world)
        yield from _endless(db)
        if db.last_index() < acknowledged:
            yield f"a write was answered and lost: index {acknowledged}, {db.last_index()} is kept"

    return [*world.machine.faults, *world.store.read(lambda db: list(look(db)))]


def _too_full(db: ReadSnapshot, world: World) -> Iterator[str]:
    """Yield nodes above capacity, according to the store and to the host.

    During a replacement, the store may contain the old and the new allocation at once, because the
    new one waits for the old one to end.
    """
    for node in nodes.list_all(db):
        cpu, memory, disk = node.capacity
        freed_resources = FreedResources(cpu=cpu, memory=memory, disk=disk)
        wanted = [
            alloc
            for alloc in allocations.to_run(db, node.id)
            if alloc.desired_status == DesiredStatus.RUN
        ]
        placed = FreedResources(
            cpu=sum(alloc.placement.resources.cpu for alloc in wanted),
            memory=sum(alloc.placement.resources.memory for alloc in wanted),
            disk=sum(alloc.placement.resources.shared.disk_mb for alloc in wanted),
        )
        at_work = [process.resources for process in world.machine.alive()]
        running = FreedResources(
            cpu=sum(resources.cpu for resources in at_work),
            memory=sum(resources.memory_mb for resources in at_work),
        )
        for what, used in (("placed", placed), ("running", running)):
            if (
                used.cpu > freed_resources.cpu
                or used.memory > freed_resources.memory
                or used.disk > freed_resources.disk
            ):
                yield f"more is {what} than there is room for: {used} of {freed_resources}"


def _endless(db: ReadSnapshot) -> Iterator[str]:
    for row in db.all(
        "SELECT id, version FROM jobs WHERE version > :most", {"most": _MOST_VERSIONS}
    ):
        yield f"{row['id']} has {row['version']} versions, which nobody asked for"


def at_rest(world: World) -> list[str]:
    """Return unfinished, unexplained or unstable state."""

    def look(db: ReadSnapshot) -> Iterator[str]:
        every = [_job(db, row["id"]) for row in db.all("SELECT id FROM jobs ORDER BY id")]
        for job in every:
            yield from _unexplained(db, job)
            yield from _uncounted(db, job)
            yield from _undecided(db, job, world)
            yield from _ledger(db, job, world.clock.now())
        yield from _unfinished(db)
        yield from _not_on_the_machine(db, world)

    return world.store.read(lambda db: list(look(db)))


def _job(db: ReadSnapshot, job_id: str) -> Job:
    found = jobs.current(db, "default", job_id)
    assert found is not None
    return found


def _unexplained(db: ReadSnapshot, job: Job) -> Iterator[str]:
    explanation = explain_job(db, job.namespace, job.id)
    reasons = explanation.reasons if explanation else []
    waits = (Cause.PLACE, Cause.DEPLOYMENT)
    waiting = {reason.task_group for reason in reasons if reason.cause in waits}
    for reason in reasons:
        # A preempted group cannot be placed while the higher-priority job runs or a deployment is
        # paused. Completed allocations of a batch job remain until all of its work is done, with
        # the record of the preemption.
        displaced = reason.cause == Cause.PREEMPTED and reason.task_group in waiting
        if reason.cause not in _LASTING and not displaced:
            yield f"{job.id} is not at rest: {reason.message}"
    wanted = sum(group.count for group in job.task_groups or ())
    if job.type == "service" and explanation and explanation.running < wanted and not reasons:
        yield f"{explanation.running} of {job.id} run, {wanted} are wanted, and nothing explains it"


def _uncounted(db: ReadSnapshot, job: Job) -> Iterator[str]:
    """Yield groups with too many allocations; a blocked evaluation must explain missing ones."""
    live = [
        alloc
        for alloc in allocations.of_job(db, job.namespace, job.id)
        if not alloc.client_terminal
    ]
    for alloc in live:
        if alloc.desired_status != DesiredStatus.RUN:
            yield f"{alloc.name} ({alloc.id}) is not wanted, and has not ended"
        if job.stop:
            yield f"{alloc.name} ({alloc.id}) is of a job that was stopped"
    latest = deployments.latest(db, job.namespace, job.id)
    for group in job.task_groups or ():
        canaries = _canaries(latest, group.name)
        there = [
            alloc for alloc in live if alloc.task_group == group.name and alloc.id not in canaries
        ]
        if len(there) > group.count and not job.stop:
            yield f"{len(there)} of {job.id}.{group.name} run, {group.count} are wanted"
        # During a rollout, promoted canaries run in addition to the allocations that they replace.
        failed = latest is not None and latest.status == DeploymentStatus.FAILED
        halfway = failed and latest.job_version == job.version
        if len({alloc.name for alloc in there}) < len(there) and not halfway:
            yield f"two of {job.id}.{group.name} have the same name"


def _canaries(latest: Deployment | None, group: str) -> set[str]:
    if latest is None or not latest.active or group not in latest.task_groups:
        return set()
    return set(latest.task_groups[group].placed_canaries or ())


def _undecided(db: ReadSnapshot, job: Job, world: World) -> Iterator[str]:
    """Yield pending decisions of the scheduler; after settling, there must be none."""
    if job.launches_children or children.is_queued(db, job.namespace, job.id):
        return
    evaluation = new_evaluation(job, "once-more", Trigger.JOB_REGISTER)
    plan = schedule(
        load_cluster_state(db, evaluation), evaluation, now=world.clock.now(), ids=world.ids
    )
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
        return  # as in Nomad: placed again only at the next evaluation
    for alloc in plan.place:
        yield f"{alloc.name} would be placed if anybody asked"
    for alloc in plan.change:
        yield f"{alloc.name} ({alloc.id}) would be changed if anybody asked"


def _unfinished(db: ReadSnapshot) -> Iterator[str]:
    for row in db.all("SELECT id FROM evaluations WHERE status = 'pending' ORDER BY id"):
        one = evaluations.find(db, row["id"])
        assert one is not None
        yield f"evaluation {one.id} of {one.job_id} ({one.triggered_by}) is pending, {one.wait_until}"
    for active in deployments.active(db):
        one = deployments.find(db, active.id)
        assert one is not None
        if not _may_go_on(db, one):
            yield f"deployment {one.id} of {one.job_id} goes on: {one.status_description}"
    for namespace, parent_id in children.parents_with_queued(db):
        if not children.has_at_least_active(db, namespace, parent_id, 1):
            yield f"children of {parent_id} are held, and none is at work"


def _may_go_on(db: ReadSnapshot, deployment: Deployment) -> bool:
    """Return whether a deployment waits for users or for capacity."""
    if deployment.status == DeploymentStatus.PAUSED:
        return True
    job = jobs.version(db, deployment.namespace, deployment.job_id, deployment.job_version)
    unfinished = {
        name: state
        for name, state in deployment.task_groups.items()
        if state.healthy_allocs < state.desired_total
        # If the count does not exceed the canaries, all can be healthy and wait for promotion.
        or (state.desired_canaries and not state.promoted)
    }
    if not unfinished:
        waiting = evaluations.unfinished(db, deployment.namespace, deployment.job_id)
        return any(evaluation.status == EvalStatus.BLOCKED for evaluation in waiting)
    for name, state in unfinished.items():
        group = job.group(name) if job else None
        manual = group and group.update and group.update.health_check == "manual"
        if manual or not state.progress_deadline or state.progress_due is None:
            return True
        if state.desired_canaries and not state.promoted:
            return state.healthy_allocs >= state.desired_canaries
    return False


def _not_on_the_machine(db: ReadSnapshot, world: World) -> Iterator[str]:
    running = {
        (alloc.id, task)
        for alloc in _live(db, world)
        for task, state in (alloc.client.task_states or {}).items()
        if state.state == "running"
    }
    alive = world.machine.alive()
    there = {process.name[:2] for process in alive}
    for name in sorted(running - there):
        yield f"{name} is said to run, and does not"
    for name in sorted(there - running):
        yield f"{name} runs, and nobody knows"
    for process in alive:
        if not process.lasts:
            yield f"{process.name} ends by itself, and what comes then has not come yet"
    present = alloc_removal.present(str(world.config.alloc_dir))
    for alloc_id in sorted(set(present) - allocations.existing_ids(db, present)):
        yield f"the directory of {alloc_id} is left over"


def _live(db: ReadSnapshot, world: World) -> list[Allocation]:
    return allocations.to_run(db, world.runner.node_id)


def _ledger(db: ReadSnapshot, job: Job, now: int) -> Iterator[str]:
    """Yield slots between two rows of a job's ledger that have no row."""
    due = periodic.of_job(db, job.namespace, job.id)
    if due is None or job.periodic is None:
        return
    if due.next_slot is None or due.next_slot < now:  # the slot of the current second is pending
        yield f"a slot of {job.id} has come, and is not decided"
    versions = jobs.versions(db, job.namespace, job.id)
    # After a clock stop or jump the schedule restarts there; one row records the skipped slots.
    anew = [version.submit_time for version in versions if version.stop]
    anew += [one.submit_time for one, older in pairwise(versions) if one.periodic != older.periodic]
    rows = list(periodic.slots(db, job.namespace, job.id, reverse=False))
    for row, following in pairwise(rows):
        slot = row.slot
        for _ in range(row.slots - 1):
            slot = next_slot(job.periodic, slot) or slot
        expected = next_slot(job.periodic, slot)
        if expected != following.slot and not any(slot <= at <= following.slot for at in anew):
            yield f"the ledger of {job.id} has a gap after {slot}: {expected}, {following.slot}"


def live(world: World) -> list[tuple[str, str]]:
    """Return ID and client status of all allocations that must run, for a later comparison."""
    node_id = world.runner.node_id
    found = world.store.read(lambda db: allocations.to_run(db, node_id))
    return [(alloc.id, alloc.client_status) for alloc in found]
