"""What lies in the directory of an allocation before any of its tasks runs."""

from daemon.runner import kept_logs, taskdir
from daemon.runner.host import Host
from daemon.runner.instance import Instance
from daemon.runner.kept_logs import About
from daemon.runner.owner import ours
from daemon.runner.provisions import owner_of, places_of
from storage.errors import Invalid
from storage.queries import allocations
from storage.records.allocation import Allocation


def lay_out(host: Host, instance: Instance) -> dict[str, str]:
    """Make the directories of an allocation; return the tasks that cannot be run, and why."""
    directory = host.directory(instance.allocation.id)
    previous = _kept(host, instance)
    try:
        if host.uids and previous:
            host.uids.inherit(
                instance.allocation.id, instance.allocation.desired.previous_allocation
            )
        owners = {task.name: owner_of(host, instance, task) or ours() for task in instance.tasks}
        taskdir.make_shared(directory, owners.values(), previous)
        kept_logs.describe(directory, _about(instance))
    except OSError as error:
        trouble = f"failed to build the allocation's directory: {error}"
        return {task.name: trouble for task in instance.tasks}
    troubles = {}
    for task in instance.tasks:
        try:
            is_seen = places_of(host, instance, task).local.startswith(directory)
            owner = owners[task.name]
            taskdir.make_task(directory, task.name, owner, previous, is_seen=is_seen)
            taskdir.write_dispatched(directory, task, instance.job.payload)
        except (OSError, Invalid) as error:
            troubles[task.name] = f"failed to build task directory: {error}"
    return troubles


def _kept(host: Host, instance: Instance) -> str:
    """Return the directory whose data is kept: of what this one replaces in its group; or nothing."""
    disk, allocation = instance.group.ephemeral_disk, instance.allocation
    before = allocation.desired.previous_allocation
    if not before or not (disk.sticky or disk.migrate):
        return ""
    found = host.store.read(lambda db: allocations.find(db, before))
    if found is None or _place(found) != _place(allocation):
        return ""
    return host.directory(before)


def _about(instance: Instance) -> About:
    return About(
        namespace=instance.allocation.namespace,
        job_id=instance.allocation.job_id,
        tasks={task.name: task.log_config for task in instance.tasks},
    )


def _place(one: Allocation) -> tuple[str, str, str]:
    return one.namespace, one.job_id, one.task_group
