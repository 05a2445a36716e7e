"""Create the directory tree of an allocation before its tasks run."""

import base64

import msgspec

from daemon.launcher.messages import AllocDirLayout, TaskDirLayout
from daemon.runner.core import task_dir
from daemon.runner.core.safe_open import PathEscape, relative_path
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.logs.retained_logs import LogManifest
from daemon.runner.setup.runtime import RuntimeContext
from daemon.runner.setup.task_setup import task_dirs_of
from storage.errors import Refused, is_descriptor_shortage
from storage.queries import allocations
from storage.records.allocation import Allocation
from storage.records.task import Task


async def prepare_alloc_dir(host: RuntimeContext, instance: TaskInstance) -> dict[str, str]:
    """Create the directories; return the errors of tasks that cannot run, by task name.

    Raises an error if no file descriptor is free; the caller repeats the creation.
    """
    alloc_id = instance.allocation.id
    directory, previous = host.directory(alloc_id), _migration_source(host, instance)
    failures, task_dirs = {}, []
    try:
        for task in instance.tasks:
            if not task_dir.can_name(task.name):
                name = f"task name {task.name!r} cannot be the name of a directory"
                failures[task.name] = f"failed to build task directory: {name}"
                continue
            is_seen = task_dirs_of(host, instance, task).local.startswith(directory)
            driver = host.drivers.get(task.driver)
            task_dirs.append(
                TaskDirLayout(
                    task=task.name,
                    driver=driver.file_owner_rule if driver else "ours",
                    user=task.user,
                    is_seen=is_seen,
                )
            )
        layout = AllocDirLayout(rooms=task_dirs, about=msgspec.json.encode(_log_manifest(instance)))
        layout_errors = await host.launcher.lay_out(alloc_id, layout, previous)
    except (OSError, ValueError) as error:
        if is_descriptor_shortage(error):
            raise
        problem = f"failed to build the allocation's directory: {error}"
        return {task.name: problem for task in instance.tasks}
    failures |= {
        name: f"failed to build task directory: {why}" for name, why in layout_errors.items()
    }
    for task in instance.tasks:
        if task.name not in failures:
            try:
                await _write_payload(host, instance, task)
            except (OSError, Refused) as error:
                if is_descriptor_shortage(error):
                    raise
                failures[task.name] = f"failed to build task directory: {error}"
    return failures


async def _write_payload(host: RuntimeContext, instance: TaskInstance, task: Task) -> None:
    """Write the payload of a dispatch into the task's local directory, unless the file exists.

    Raises `Refused` if the name of the file points outside that directory, or `OSError`.
    """
    payload, dispatch_payload = instance.job.payload, task.dispatch_payload
    if not payload or dispatch_payload is None or not dispatch_payload.file:
        return
    files = TaskFiles(
        launcher=host.launcher,
        allocation=instance.allocation.id,
        task=task.name,
        places=task_dirs_of(host, instance, task),
    )
    try:
        path = files.own(f"local/{relative_path(dispatch_payload.file)}")
    except PathEscape:
        raise Refused(
            f"payload file {dispatch_payload.file!r} is outside of the task's local directory"
        ) from None
    await files.write(path, base64.b64decode(payload), mode=0o644, is_new=True)


def _migration_source(host: RuntimeContext, instance: TaskInstance) -> str | None:
    """Return the ID of the replaced allocation whose data migrates to this allocation, or None."""
    disk, allocation = instance.group.ephemeral_disk, instance.allocation
    before = allocation.desired.previous_allocation
    if not before or not (disk.sticky or disk.migrate):
        return None
    predecessor = host.store.read(lambda db: allocations.find(db, before))
    if predecessor is None or _group_key(predecessor) != _group_key(allocation):
        return None
    return before


def _log_manifest(instance: TaskInstance) -> LogManifest:
    return LogManifest(
        namespace=instance.allocation.namespace,
        job_id=instance.allocation.job_id,
        tasks={task.name: task.log_config for task in instance.tasks},
    )


def _group_key(alloc: Allocation) -> tuple[str, str, str]:
    return alloc.namespace, alloc.job_id, alloc.task_group
