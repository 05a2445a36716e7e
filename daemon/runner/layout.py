"""What lies in the directory of an allocation before any of its tasks runs."""

import base64

import msgspec

from daemon.launcher.messages import Layout, Room
from daemon.runner import taskdir
from daemon.runner.beneath import Escapes, inner
from daemon.runner.host import Host
from daemon.runner.instance import Instance
from daemon.runner.kept_logs import About
from daemon.runner.provisions import owner_of, places_of
from daemon.runner.taskfiles import TaskFiles
from storage.errors import Refused
from storage.queries import allocations
from storage.records.allocation import Allocation
from storage.records.task import Task


async def lay_out(host: Host, instance: Instance) -> dict[str, str]:
    """Have the directories of an allocation made; return the tasks that cannot be run, and why."""
    alloc_id = instance.allocation.id
    directory, previous = host.directory(alloc_id), _kept(host, instance)
    troubles, rooms = {}, []
    try:
        if host.uids and previous:
            host.uids.inherit(alloc_id, previous)
        for task in instance.tasks:
            if not taskdir.can_name(task.name):
                name = f"task name {task.name!r} cannot be the name of a directory"
                troubles[task.name] = f"failed to build task directory: {name}"
                continue
            is_seen = places_of(host, instance, task).local.startswith(directory)
            owner = owner_of(host, instance, task)
            rooms.append(Room(task=task.name, owner=owner, is_seen=is_seen))
        layout = Layout(rooms=rooms, about=msgspec.json.encode(_about(instance)))
        found = await host.launcher.lay_out(alloc_id, layout, previous)
    except OSError as error:
        trouble = f"failed to build the allocation's directory: {error}"
        return {task.name: trouble for task in instance.tasks}
    troubles |= {name: f"failed to build task directory: {why}" for name, why in found.items()}
    for task in instance.tasks:
        if task.name not in troubles:
            try:
                await _bring_payload(host, instance, task)
            except (OSError, Refused) as error:
                troubles[task.name] = f"failed to build task directory: {error}"
    return troubles


async def _bring_payload(host: Host, instance: Instance, task: Task) -> None:
    """Put the payload of a dispatch into the task's local directory, if it wants it, unless it is there.

    Raises `Refused` when its name leads out of that directory, or `OSError`.
    """
    payload, wanted = instance.job.payload, task.dispatch_payload
    if not payload or wanted is None or not wanted.file:
        return
    files = TaskFiles(
        launcher=host.launcher,
        allocation=instance.allocation.id,
        task=task.name,
        places=places_of(host, instance, task),
    )
    try:
        path = files.own(f"local/{inner(wanted.file)}")
    except Escapes:
        raise Refused(
            f"payload file {wanted.file!r} is outside of the task's local directory"
        ) from None
    await files.write(path, base64.b64decode(payload), mode=0o644, is_new=True)


def _kept(host: Host, instance: Instance) -> str | None:
    """Return the allocation whose data is kept: what this one replaces in its group; or None."""
    disk, allocation = instance.group.ephemeral_disk, instance.allocation
    before = allocation.desired.previous_allocation
    if not before or not (disk.sticky or disk.migrate):
        return None
    found = host.store.read(lambda db: allocations.find(db, before))
    if found is None or _place(found) != _place(allocation):
        return None
    return before


def _about(instance: Instance) -> About:
    return About(
        namespace=instance.allocation.namespace,
        job_id=instance.allocation.job_id,
        tasks={task.name: task.log_config for task in instance.tasks},
    )


def _place(one: Allocation) -> tuple[str, str, str]:
    return one.namespace, one.job_id, one.task_group
