"""Message texts: a subject of one line, and a body for an operator on call. No I/O."""

import re
from collections.abc import Iterator, Sequence

from daemon.notify.message import Batch, Context, FailureCause, NotificationWithContext
from daemon.text.job_state import TROUBLE
from storage.records.notification import Notification, NotifyEvent
from storage.records.times import rfc3339

_LONGEST_SUBJECT = 200  # characters
_NAMED = 3  # jobs in the subject of a group
_LISTED = 20  # notifications without their context in the text of a group
# Sequences that color a terminal or move its cursor, and all other control characters.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_PLURALS = {
    "failure": "failures",
    "recovery": "recoveries",
    "missed": "missed",
    "late": "late",
    "approval": "approvals",
}


def plain(text: str) -> str:
    """Return a text without control characters, except for tabs and line breaks."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def line(text: str) -> str:
    """Return a text as one line without control characters."""
    return " ".join(plain(text).split())


def name_of(notification: Notification) -> str:
    """Return the name of a job for messages, with its namespace unless it is `default`."""
    return (
        notification.job_id
        if notification.namespace == "default"
        else f"{notification.namespace}/{notification.job_id}"
    )


def subject(batch: Batch) -> str:
    """Return the subject of a message: one line of at most 200 characters."""
    if batch.is_test:
        return "Test of Steward's notifications"
    batch_notifications = batch.notifications
    subject_line = headline(batch.first[0]) if len(batch_notifications) == 1 else _of_group(batch)
    subject_line = line(subject_line)
    return (
        subject_line
        if len(subject_line) <= _LONGEST_SUBJECT
        else f"{subject_line[: _LONGEST_SUBJECT - 1]}…"
    )


def headline(entry: NotificationWithContext) -> str:
    """Return one notification in one sentence."""
    notification, context = entry.notification, entry.context
    if notification.event == NotifyEvent.RECOVERY:
        return f"{name_of(notification)}: {notification.reason}"
    if notification.event == NotifyEvent.MISSED:
        return f"{name_of(notification)} missed a run: {notification.reason}"
    if notification.event == NotifyEvent.LATE:
        return f"{name_of(notification)} runs late: {notification.reason}"
    if notification.event == NotifyEvent.APPROVAL:
        return f"{name_of(notification)} waits for approval: {notification.reason}"
    is_trouble = context.state in TROUBLE
    state = {"failed": "failed"}.get(context.state, f"is {context.state}")
    cause = context.error.summary if context.error else notification.reason
    return f"{name_of(notification)} {state if is_trouble else 'failed'}: {cause}"


def _of_group(batch: Batch) -> str:
    counts = [
        f"{number} {event if number == 1 else _PLURALS[event]}"
        for event, number in batch.counts.items()
    ]
    return f"{', '.join(counts)}: {_jobs(batch.notifications)}"


def _jobs(entries: Sequence[Notification]) -> str:
    names = list(dict.fromkeys(map(name_of, entries)))
    named, more = names[:_NAMED], len(names) - _NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def text(batch: Batch) -> str:
    """Return a message as lines of plain text."""
    if batch.is_test:
        message = f"This is a test of the receiver, sent by {line(batch.node_name)}. No job failed."
        return f"{subject(batch)}\n\n{message}\n"
    parts = ["\n".join(_block(entry)) for entry in batch.first]
    if batch.rest:
        parts.append("\n".join(_list_others(batch.rest)))
    return plain("\n\n".join(parts)) + "\n"


def _list_others(notifications: Sequence[Notification]) -> Iterator[str]:
    yield f"And {len(notifications)} more:"
    for notification in notifications[:_LISTED]:
        yield f"  {line(f'{name_of(notification)}: {notification.event}: {notification.reason}')}"
    if len(notifications) > _LISTED:
        yield f"  … and {len(notifications) - _LISTED} more"


def _block(entry: NotificationWithContext) -> Iterator[str]:
    notification, context = entry.notification, entry.context
    yield line(headline(entry))
    yield ""
    for label, value in _facts(notification, context):
        if value:
            yield f"{label + ':':<11} {line(value)}"
    if context.error and context.error.stderr:
        yield "Last lines of the standard error:"
        yield from (f"  {error_line}" for error_line in plain(context.error.stderr).splitlines())


def _facts(notification: Notification, context: Context) -> Iterator[tuple[str, str]]:
    yield "Job", name_of(notification)
    yield "Run", notification.run_id if notification.run_id != notification.job_id else ""
    yield "State", context.state
    yield "Time", _format_time(rfc3339(notification.create_time))
    yield (
        "Reason",
        notification.reason if context.error else "",
    )  # without an error, the first line has the reason
    if context.error:
        yield from _of_error(context.error)
    yield "Host", context.host
    yield "In a row", _in_a_row(context)
    yield "Page", context.link
    yield "Look at", context.command


def _of_error(error: FailureCause) -> Iterator[tuple[str, str]]:
    yield "Task", f"{error.task} of group {error.group}, allocation {error.allocation_id}"
    yield "End", end_of(error)
    yield "Attempt", str(error.attempt)


def end_of(error: FailureCause) -> str:
    """Return how a task ended, such as `exit code 1` or `signal SIGKILL, out of memory`."""
    parts = [f"exit code {error.exit_code}" if error.exit_code else ""]
    parts.append(f"signal {error.signal}" if error.signal else "")
    parts.append("out of memory" if error.oom_killed else "")
    return ", ".join(filter(None, parts)) or error.summary


def _in_a_row(context: Context) -> str:
    if not context.failed_in_a_row:
        return ""
    often = "1 failure"
    if context.failed_in_a_row > 1:
        often = f"{context.failed_in_a_row} failures"
    since = f", since {_format_time(context.failing_since)}" if context.failing_since else ""
    last_good = (
        f"; last success {_format_time(context.last_success)}" if context.last_success else ""
    )
    return f"{often}{since}{last_good}"


def _format_time(text: str) -> str:
    """Format an RFC 3339 text in UTC for people: `2026-11-21 01:40:00 UTC`."""
    return f"{text[:10]} {text[11:19]} UTC"
