"""Allocations in wire form: for listings, and in detail."""

from collections.abc import Mapping

import msgspec

from storage.records.allocation import (
    AllocatedResources,
    Allocation,
    DeploymentHealth,
    DesiredTransition,
    NetworkStatus,
    RescheduleTracker,
    TaskEvent,
    TaskState,
    TaskStateWithEvents,
)
from storage.records.base import Record, SparseRecord
from storage.records.evaluation import PlacementMetric
from storage.records.job import Job
from storage.records.task import Network, Port, Resources

UNASKED = DesiredTransition()
TaskStates = Mapping[str, TaskState] | None


class Retry(Record, frozen=True, kw_only=True):
    """The attempts of an allocation. `message` states when the next one begins, or why none will.

    `attempts` counts placements, including those of replaced allocations; `restarts` counts
    restarts in place. `next_time` (nanoseconds since the epoch) is 0 if no attempt follows, or if
    the time is unknown.
    """

    attempts: int
    restarts: int
    message: str
    next_time: int = 0


class AllocationStub(Record, frozen=True, kw_only=True):
    """An allocation in a listing."""

    id: str
    eval_id: str
    name: str
    namespace: str
    node_id: str
    node_name: str
    job_id: str
    job_type: str
    job_version: int
    task_group: str
    desired_status: str
    desired_description: str
    desired_transition: DesiredTransition
    client_status: str
    client_description: str
    task_states: TaskStates
    deployment_status: DeploymentHealth | None
    followup_eval_id: str
    next_allocation: str
    reschedule_tracker: RescheduleTracker | None
    preempted_allocations: list[str] | None = None
    preempted_by_allocation: str = ""
    create_index: int
    modify_index: int
    create_time: int
    modify_time: int


class AllocationStubWithResources(AllocationStub, frozen=True, kw_only=True):
    """An allocation in a listing that includes resources."""

    allocated_resources: AllocatedResources


class AllocationView(SparseRecord, frozen=True, kw_only=True):
    """An allocation with all details, including its job."""

    id: str
    namespace: str
    eval_id: str
    name: str
    node_id: str
    node_name: str
    job_id: str
    job: msgspec.Raw
    task_group: str
    resources: Resources
    shared_resources: Resources
    task_resources: Mapping[str, Resources]
    allocated_resources: AllocatedResources
    metrics: PlacementMetric
    desired_status: str
    desired_description: str = ""
    desired_transition: DesiredTransition | None = None
    client_status: str
    client_description: str = ""
    task_states: TaskStates = None
    previous_allocation: str = ""
    next_allocation: str = ""
    deployment_id: str = ""
    deployment_status: DeploymentHealth | None = None
    reschedule_tracker: RescheduleTracker | None = None
    network_status: NetworkStatus | None = None
    signing_key_id: str = ""
    followup_eval_id: str = ""
    preempted_allocations: list[str] | None = None
    preempted_by_allocation: str = ""
    retry: Retry | None = None
    create_index: int
    modify_index: int
    alloc_modify_index: int
    create_time: int
    modify_time: int


def with_events(allocation: Allocation, events: Mapping[str, list[TaskEvent]]) -> TaskStates:
    """Return the task states of an allocation, each with its newest events."""
    states = allocation.client.task_states
    if states is None:
        return None
    return {
        name: TaskStateWithEvents(**msgspec.structs.asdict(state), events=events.get(name, []))
        for name, state in states.items()
    }


def allocation_list_item(
    allocation: Allocation, task_states: TaskStates, *, resources: bool = False
) -> AllocationStub:
    """Return an allocation in listing form."""
    desired = allocation.desired
    line = AllocationStub(
        id=allocation.id,
        eval_id=allocation.eval_id,
        name=allocation.name,
        namespace=allocation.namespace,
        node_id=allocation.node_id,
        node_name=allocation.placement.node_name,
        job_id=allocation.job_id,
        job_type=allocation.job_type,
        job_version=allocation.job_version,
        task_group=allocation.task_group,
        desired_status=allocation.desired_status,
        desired_description=desired.description,
        desired_transition=desired.transition,
        client_status=allocation.client_status,
        client_description=allocation.client.description,
        task_states=task_states,
        deployment_status=allocation.health,
        followup_eval_id=desired.followup_eval_id,
        next_allocation=desired.next_allocation,
        reschedule_tracker=desired.reschedule_tracker,
        preempted_allocations=desired.preempted_allocations,
        preempted_by_allocation=desired.preempted_by_allocation,
        create_index=allocation.create_index,
        modify_index=allocation.modify_index,
        create_time=allocation.create_time,
        modify_time=allocation.modify_time,
    )
    if not resources:
        return line
    return AllocationStubWithResources(
        **msgspec.structs.asdict(line), allocated_resources=allocation.placement.resources
    )


def allocation_view(
    allocation: Allocation, task_states: TaskStates, job: Job | None, job_wire: bytes
) -> AllocationView:
    """Return an allocation with all details. `job_wire` is its job as JSON.

    Older clients expect the resources in three older forms. These are made from `job`, and are
    empty without it.
    """
    desired, placement = allocation.desired, allocation.placement
    group = job.group(allocation.task_group) if job else None
    tasks = {task.name: task.resources for task in (group.tasks if group else None) or ()}
    shared = placement.resources.shared
    networks = [
        Network(
            mode=network.mode,
            device=network.device,
            ip=network.ip,
            mbits=network.mbits,
            reserved_ports=[
                Port(
                    label=port.label,
                    value=port.value,
                    to=port.to,
                    host_network=port.host_network,
                )
                for port in network.reserved_ports or ()
            ],
            dynamic_ports=[
                Port(
                    label=port.label,
                    value=port.value,
                    to=port.to,
                    host_network=port.host_network,
                )
                for port in network.dynamic_ports or ()
            ],
        )
        for network in shared.networks or ()
    ]
    return AllocationView(
        id=allocation.id,
        namespace=allocation.namespace,
        eval_id=allocation.eval_id,
        name=allocation.name,
        node_id=allocation.node_id,
        node_name=placement.node_name,
        job_id=allocation.job_id,
        job=msgspec.Raw(job_wire),
        task_group=allocation.task_group,
        resources=Resources(
            cpu=sum(task.cpu for task in tasks.values()),
            memory_mb=sum(task.memory_mb for task in tasks.values()),
            disk_mb=shared.disk_mb,
            networks=networks or None,
        ),
        shared_resources=Resources(
            cpu=0, memory_mb=0, disk_mb=shared.disk_mb, networks=networks or None
        ),
        task_resources=tasks,
        allocated_resources=placement.resources,
        metrics=placement.metrics,
        desired_status=allocation.desired_status,
        desired_description=desired.description,
        desired_transition=desired.transition if desired.transition != UNASKED else None,
        client_status=allocation.client_status,
        client_description=allocation.client.description,
        task_states=task_states,
        previous_allocation=desired.previous_allocation,
        next_allocation=desired.next_allocation,
        deployment_id=allocation.deployment_id,
        deployment_status=allocation.health,
        reschedule_tracker=desired.reschedule_tracker,
        network_status=_network_status(allocation),
        signing_key_id=placement.signing_key_id,
        followup_eval_id=desired.followup_eval_id,
        preempted_allocations=desired.preempted_allocations,
        preempted_by_allocation=desired.preempted_by_allocation,
        create_index=allocation.create_index,
        modify_index=allocation.modify_index,
        alloc_modify_index=allocation.alloc_modify_index,
        create_time=allocation.create_time,
        modify_time=allocation.modify_time,
    )


def _network_status(allocation: Allocation) -> NetworkStatus | None:
    """Return the network status that the runner reported for a group in bridge mode.

    If the runner reported none, return an empty status, or None if no task has a state yet.
    """
    client = allocation.client
    return client.network_status or (NetworkStatus() if client.task_states else None)
