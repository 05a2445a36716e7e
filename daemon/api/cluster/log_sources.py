"""Location of an allocation's logs: its allocation directory, or the retained logs."""

import re

import msgspec

from daemon.api.cluster.lookup import resolve_allocation
from daemon.api.cluster.masked_log import READ_RAW_LOGS, MaskedLog
from daemon.app.context import OutputMasks
from daemon.runner.core.task_log import Logs, TaskLog
from daemon.runner.logs import retained_logs
from daemon.runner.logs.alloc_files import is_there
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, TaskPhase
from storage.records.group import TaskGroup
from storage.records.task import LogConfig
from storage.store import Store

_IDENTIFIER = re.compile(r"[0-9a-f-]{36}")


class LogSource(msgspec.Struct, frozen=True, kw_only=True):
    """The logs of one allocation; `root` is their directory, for display.

    With `masks`, secrets of the tasks are masked.
    """

    alloc_id: str
    namespace: str
    root: str
    tasks: dict[str, LogConfig]
    logs: Logs
    masks: OutputMasks | None

    def log(self, task: str, kind: str) -> TaskLog:
        """Return a log of a task; `kind` is stdout or stderr."""
        if self.masks is None:
            return self.logs.log(self.alloc_id, task, kind, self.tasks[task])
        return MaskedLog(self.logs, (self.alloc_id, task, kind), self.tasks[task], self.masks)


async def find_source(request: Request, alloc_id: str) -> LogSource:
    """Return the logs of an allocation, if the caller may see its namespace.

    Raises `NotFound` for an unknown allocation, and `Denied`.
    """
    parts = request.parts
    try:
        allocation, group = await resolve_allocation(parts.store, alloc_id)
    except NotFound:
        is_one = _IDENTIFIER.fullmatch(alloc_id)
        manifest = (
            await retained_logs.read_manifest(parts.logs.launcher, alloc_id) if is_one else None
        )
        if manifest is None:
            raise
        request.require(manifest.namespace)
        return LogSource(
            alloc_id=alloc_id,
            namespace=manifest.namespace,
            root=str(parts.config.logs_dir / alloc_id),
            tasks=manifest.tasks,
            logs=parts.logs,
            masks=_masks(request, manifest.namespace),
        )
    request.require(allocation.namespace)
    return await sources_of_group(request, allocation, group)


async def sources_of_group(
    request: Request, allocation: Allocation, group: TaskGroup | None
) -> LogSource:
    """Return the logs of an allocation. Raises `NotFound` if they were deleted."""
    return await source_of_tasks(request, allocation, log_configs(group))


def log_configs(group: TaskGroup | None) -> dict[str, LogConfig]:
    """Return the log configuration of each task of a group, by task name."""
    return {task.name: task.log_config for task in (group.tasks if group else None) or ()}


def tasks_of_current_version(db: ReadSnapshot, namespace: str, job_id: str) -> list[str]:
    """Return the names of all tasks of a job's current version, without duplicates."""
    job = jobs.current(db, namespace, job_id)
    groups = (job.task_groups if job else None) or ()
    return list(dict.fromkeys(name for group in groups for name in log_configs(group)))


async def source_of_tasks(
    request: Request, allocation: Allocation, tasks: dict[str, LogConfig]
) -> LogSource:
    """Return the logs of an allocation's `tasks`. Raises `NotFound` if they were deleted."""
    parts = request.parts
    if allocation.client_terminal and not await is_there(parts.logs.launcher, allocation.id):
        raise NotFound(
            f'allocation "{allocation.id}" has no logs: its tasks wrote no output, or the logs were '
            "deleted because of log_retention_days or log_retention_mb"
        )
    return LogSource(
        alloc_id=allocation.id,
        namespace=allocation.namespace,
        root=str(parts.config.alloc_dir / allocation.id),
        tasks=tasks,
        logs=parts.logs,
        masks=_masks(request, allocation.namespace),
    )


def _masks(request: Request, namespace: str) -> OutputMasks | None:
    """Return the masks for the caller, or None if the caller may see the output unmasked."""
    return None if request.caller.grant.may(namespace, READ_RAW_LOGS) else request.parts.output


def has_ended(store: Store, alloc_id: str, task_name: str) -> bool:
    """Return whether a task can have no further output."""
    allocation = store.read(lambda db: allocations.find(db, alloc_id))
    return allocation is None or task_has_ended(allocation, task_name)


def task_has_ended(allocation: Allocation, task_name: str) -> bool:
    """Return whether a task of an allocation can have no further output."""
    if allocation.client_terminal:
        return True
    state = (allocation.client.task_states or {}).get(task_name)
    return state is not None and state.state == TaskPhase.DEAD
