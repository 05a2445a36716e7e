"""Default responses of a fake daemon, for tests of the command line."""

from typing import Any

from daemon.cli.core.responses import AllocationItem, JobListItem
from storage.records.allocation import DesiredTransition, TaskEvent, TaskStateWithEvents
from tests.samples import NOW


def allocation_line(alloc_id: str = "a1", **fields: Any) -> AllocationItem:
    given = {
        "eval_id": "e1",
        "name": "web.web[0]",
        "namespace": "default",
        "node_id": "n1",
        "node_name": "node-1",
        "job_id": "web",
        "job_type": "service",
        "job_version": 0,
        "task_group": "web",
        "desired_status": "run",
        "desired_description": "",
        "desired_transition": DesiredTransition(),
        "client_status": "running",
        "client_description": "",
        "task_states": None,
        "deployment_status": None,
        "followup_eval_id": "",
        "next_allocation": "",
        "reschedule_tracker": None,
        "create_index": 10,
        "modify_index": 11,
        "create_time": NOW,
        "modify_time": NOW,
        **fields,
    }
    return AllocationItem(id=alloc_id, **given)


def task_state(*events: tuple[str, str], **fields: Any) -> TaskStateWithEvents:
    happened = [TaskEvent(type=kind, time=NOW, display_message=words) for kind, words in events]
    return TaskStateWithEvents(events=happened, **fields)


def job_line(**fields: Any) -> JobListItem:
    given = {
        "id": "web",
        "namespace": "default",
        "type": "service",
        "priority": 50,
        "status": "running",
        "submit_time": NOW,
        **fields,
    }
    return JobListItem(**given)
