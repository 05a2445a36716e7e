"""Where the logs of an allocation lie: beside its tasks, or put aside since its directory went."""

import re
from pathlib import Path

import msgspec

from daemon.api.cluster.find import find_group
from daemon.runner import kept_logs
from daemon.runner.logs import TaskLog
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import allocations
from storage.records.allocation import Allocation, TaskPhase
from storage.records.group import TaskGroup
from storage.records.task import LogConfig
from storage.store import Store

_IDENTIFIER = re.compile(r"[0-9a-f-]{36}")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The logs of one allocation."""

    alloc_id: str
    namespace: str
    directory: Path
    tasks: dict[str, LogConfig]

    def log(self, task: str, kind: str) -> TaskLog:
        """Return what one of its tasks prints; `kind` is stdout or stderr."""
        return TaskLog(str(self.directory), task, kind, self.tasks[task])


def find_source(request: Request, alloc_id: str) -> Source:
    """Return the logs of an allocation, if who asks may see its namespace.

    Raises `NotFound` for an allocation of which nothing is known, and `Denied`.
    """
    config, store = request.parts.config, request.parts.store
    directory = kept_logs.directory_of(config.alloc_dir, config.logs_dir, alloc_id)
    try:
        allocation, group = store.read(lambda db: find_group(db, alloc_id))
    except NotFound:
        about = kept_logs.about(directory) if _IDENTIFIER.fullmatch(alloc_id) else None
        if about is None:
            raise
        request.require(about.namespace)
        return Source(
            alloc_id=alloc_id, namespace=about.namespace, directory=directory, tasks=about.tasks
        )
    request.require(allocation.namespace)
    return of_group(allocation, group, directory)


def of_group(allocation: Allocation, group: TaskGroup | None, directory: Path) -> Source:
    """Return the logs of an allocation. Raises `NotFound` when they are not kept any more."""
    if allocation.client_terminal and not directory.exists():
        raise NotFound(
            f'the logs of allocation "{allocation.id}" are gone: it printed nothing, or they were '
            "removed after log_retention_days or for log_retention_mb"
        )
    tasks = (group.tasks if group else None) or ()
    return Source(
        alloc_id=allocation.id,
        namespace=allocation.namespace,
        directory=directory,
        tasks={task.name: task.log_config for task in tasks},
    )


def has_ended(store: Store, alloc_id: str, task_name: str) -> bool:
    """Tell whether a task will print no more."""
    allocation = store.read(lambda db: allocations.find(db, alloc_id))
    if allocation is None or allocation.client_terminal:
        return True
    state = (allocation.client.task_states or {}).get(task_name)
    return state is not None and state.state == TaskPhase.DEAD
