"""What lies in the directory of an allocation before any of its tasks runs."""

import base64

from daemon.runner import taskdir
from daemon.runner.instance import Instance
from storage.errors import Invalid
from storage.records.task import Task


def lay_out(directory: str, instance: Instance) -> dict[str, str]:
    """Make the directories of an allocation; return the tasks that cannot be run, and why."""
    try:
        taskdir.make_shared(directory)
    except OSError as error:
        trouble = f"failed to build the allocation's directory: {error}"
        return {task.name: trouble for task in instance.tasks}
    troubles = {}
    for task in instance.tasks:
        try:
            taskdir.make_task(directory, task.name)
            _write_payload(directory, instance, task)
        except (OSError, Invalid) as error:
            troubles[task.name] = f"failed to build task directory: {error}"
    return troubles


def _write_payload(directory: str, instance: Instance, task: Task) -> None:
    payload = instance.job.payload
    if payload and task.dispatch_payload is not None and task.dispatch_payload.file:
        content = base64.b64decode(payload)
        taskdir.write_payload(directory, task.name, task.dispatch_payload.file, content)
