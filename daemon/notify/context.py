"""The context of a notification, for operators on call; loaded when the message is sent."""

import shlex
from urllib.parse import quote, urlencode

from daemon.evals import job_states
from daemon.evals.failures import newest_error
from daemon.notify.message import Context, FailureCause
from daemon.text.job_state import State
from daemon.text.task_failure import last_lines
from storage.queries import allocations
from storage.read_pool import ReadSnapshot
from storage.records.failure import TaskError
from storage.records.notification import Notification, NotifyEvent
from storage.records.times import rfc3339

_LINES = 20  # lines of the standard error
_RUNS = 50  # child jobs in which consecutive failures are counted


def context_of(
    db: ReadSnapshot, notification: Notification, *, site: str, now: int, node_name: str = ""
) -> Context:
    """Return the context of a notification.

    `site` is the address of the web UI. If the allocation's node is unknown, the context contains
    `node_name` instead.
    """
    state = job_states.state_of(db, notification.namespace, notification.job_id, now)
    error = None
    if notification.event == NotifyEvent.FAILURE:
        error = newest_error(db, notification.namespace, notification.run_id)
    failed, last_success = _history(db, notification, now)
    elsewhere = {"namespace": notification.namespace} if notification.namespace != "default" else {}
    options = [f"--namespace={name}" for name in elsewhere.values()]
    return Context(
        host=_host(db, error) or node_name,
        state=state.word if state else "",
        error=_cause(error) if error else None,
        failed_in_a_row=max(
            failed, notification.failures if notification.event == NotifyEvent.FAILURE else 0
        ),
        failing_since=_since(notification),
        last_success=last_success,
        link=f"{site}/ui/job/{quote(notification.job_id, safe='')}{_query(elsewhere)}"
        if site
        else "",
        command=shlex.join(["steward", "job", "explain", *options, notification.job_id]),
    )


def _since(notification: Notification) -> str:
    is_failing = notification.event == NotifyEvent.FAILURE and notification.failing_since
    return rfc3339(notification.failing_since) if is_failing else ""


def _query(parameters: dict[str, str]) -> str:
    return f"?{urlencode(parameters)}" if parameters else ""


def _host(db: ReadSnapshot, error: TaskError | None) -> str:
    allocation = allocations.find(db, error.allocation_id) if error else None
    return allocation.placement.node_name if allocation else ""


def _cause(error: TaskError) -> FailureCause:
    return FailureCause(
        summary=error.summary,
        group=error.task_group,
        task=error.task,
        allocation_id=error.allocation_id,
        exit_code=error.exit_code,
        signal=error.signal,
        oom_killed=error.oom_killed,
        restarts=error.restarts,
        attempt=error.restarts + 1,
        stderr="\n".join(last_lines(error, _LINES)),
    )


def _history(db: ReadSnapshot, notification: Notification, now: int) -> tuple[int, str]:
    """Return the number of consecutive failures and the time of the last success.

    Only child jobs have a history. For any other job, the result is 0 and an empty string.
    """
    if notification.run_id == notification.job_id:
        return 0, ""
    failed = 0
    for run in job_states.runs(db, notification.namespace, notification.job_id, now, _RUNS):
        if run.result == State.FAILED:
            failed += 1
        elif run.result == State.COMPLETE:
            return failed, rfc3339(run.ended)
    return failed, ""
