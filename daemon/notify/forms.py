"""Message formats of Slack-compatible webhooks, ntfy and Alertmanager. No I/O."""

import re

import msgspec

from daemon.notify import words
from daemon.notify.message import Batch, NotificationWithContext
from storage.records.base import HOUR, MINUTE
from storage.records.notification import Notification, NotifyEvent
from storage.records.times import rfc3339

_SLACK_TEXT = 4000  # characters: Slack advises no more in one text
_NTFY_MESSAGE = 4096  # bytes: a longer message becomes an attachment
_NTFY_TITLE = 250  # characters
_ALERTS = 1000
_FAILURE_ENDS = 7 * 24 * HOUR
_PASSING_ENDS = HOUR  # nanoseconds until an alert ends, for events without a recovery
_TEST_ENDS = MINUTE
_MENTION = re.compile(r"@(?=\w)")
_BROKEN = "@\u200b"  # an @ that the receiver does not treat as a mention


def slack(batch: Batch) -> bytes:
    """Return the body for a Slack-compatible webhook.

    Rules: https://docs.slack.dev/messaging/formatting-message-text and
    https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks. The JSON object has a
    `text`. In it, `&`, `<` and `>` are written as entities, so that no text becomes a link or a
    mention. Mattermost and others also treat `@channel` in plain text as a mention. A zero-width
    space after the `@` prevents this. The lines after the title are in a code block, between
    lines of three backticks, so they are shown without formatting.
    """
    title, text = words.subject(batch), words.text(batch)
    if len(batch.notifications) == 1:  # its first line repeats the title
        text = text.partition("\n")[2]
    available_length = _SLACK_TEXT - len(title)
    message_text = f"*{_inline(title)}*\n```\n{_block(text.strip(), available_length)}\n```"
    return msgspec.json.encode({"text": message_text})


def _entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _inline(text: str) -> str:
    """Return a text without characters that would format it or create a mention."""
    # The operator sign looks like an asterisk, and has no meaning in the receiver's markup.
    return _MENTION.sub(_BROKEN, _entities(text.replace("*", "∗").replace("`", "'")))  # noqa: RUF001


def _block(text: str, available: int) -> str:
    """Return a text as a code block, shortened in the middle if it is too long."""
    if len(text) > available:  # the end holds the last error lines
        text = f"{text[: available // 2]}\n…\n{text[-(available // 2) :]}"
    return _entities(text.replace("```", "'''"))


def ntfy(batch: Batch, topic: str) -> bytes:
    """Return the body for the root address of an ntfy server.

    Rules: https://docs.ntfy.sh/publish/#publish-as-json. The JSON object has topic, title, message,
    a priority from 1 to 5, tags, and the link that a click opens. A message above 4,096 bytes would
    become an attachment.
    """
    events = {notification.event for notification in batch.notifications}
    is_bad = NotifyEvent.FAILURE in events and not batch.is_test
    is_good = events == {NotifyEvent.RECOVERY}
    link = batch.first[0].context.link
    body: dict[str, object] = {
        "topic": topic,
        "title": words.subject(batch)[:_NTFY_TITLE],
        "message": _cut(words.text(batch), _NTFY_MESSAGE),
        "priority": 4 if is_bad else 3,
        "tags": ["rotating_light" if is_bad else "white_check_mark" if is_good else "warning"],
    }
    return msgspec.json.encode(body | ({"click": link} if link else {}))


def _cut(text: str, most: int) -> str:
    """Return a text of at most `most` bytes, shortened in the middle."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    half = most // 2 - 4
    begin, end = encoded[:half], encoded[-half:]
    return f"{begin.decode(errors='ignore')}\n…\n{end.decode(errors='ignore')}"


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An alert in Alertmanager's format."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str
    generator_url: str = msgspec.field(default="", name="generatorURL")


def alertmanager(batch: Batch) -> bytes:
    """Return the body for `POST /api/v2/alerts`.

    Rules: https://prometheus.io/docs/alerting/latest/alerts_api and the OpenAPI document of
    Alertmanager (api/v2/openapi.yaml). The body is a list of alerts. Equal labels mean the same
    alert, so labels contain neither a run nor a time. To report a recovery, Steward sends the alert
    of the failure again, with the time of the recovery as its end time. Without an end time, an
    alert would be resolved after `resolve_timeout`, because Steward does not repeat alerts. So the
    alert of a failure also has an end time, 7 days after the failure.
    """
    alerts: dict[tuple[str, ...], Alert] = {}
    entries = [
        *batch.first,
        *(NotificationWithContext(notification=notification) for notification in batch.rest),
    ][-_ALERTS:]
    for entry in entries:  # of equal alerts, only the newest is sent
        alert = _alert(entry, batch)
        key = tuple(alert.labels.values())
        before = alerts.pop(key, None)
        if before is not None and before.starts_at < alert.starts_at:
            alert = msgspec.structs.replace(alert, starts_at=before.starts_at)
        alerts[key] = alert
    return msgspec.json.encode(list(alerts.values()))


def _alert(entry: NotificationWithContext, batch: Batch) -> Alert:
    notification, context = entry.notification, entry.context
    error = context.error
    alone = msgspec.structs.replace(batch, first=(entry,), rest=())
    notes = {
        "summary": words.subject(alone),
        "description": words.text(alone),
        "command": context.command,
        "host": context.host,
        "run": notification.run_id if notification.run_id != notification.job_id else "",
        "task": error.task if error else "",
        "group": error.group if error else "",
        "exit": words.end_of(error) if error else "",
    }
    starts = notification.failing_since or notification.create_time
    return Alert(
        labels={
            "alertname": "StewardTest" if batch.is_test else _alert_name(notification),
            "instance": batch.node_name or "steward",
            "namespace": notification.namespace,
            "job": notification.job_id,
            "severity": _severity(notification, is_test=batch.is_test),
        },
        annotations={name: value for name, value in notes.items() if value},
        starts_at=rfc3339(starts),
        ends_at=rfc3339(_end(notification, is_test=batch.is_test)),
        generator_url=context.link,
    )


def _alert_name(notification: Notification) -> str:
    match notification.event:
        case NotifyEvent.FAILURE | NotifyEvent.RECOVERY:
            return "StewardJobFailed"
        case NotifyEvent.MISSED:
            return "StewardRunMissed"
        case NotifyEvent.LATE:
            return "StewardRunLate"
        case NotifyEvent.APPROVAL:
            return "StewardRunWaitsForApproval"


def _severity(notification: Notification, *, is_test: bool) -> str:
    if is_test:
        return "info"
    is_failure = notification.event in (NotifyEvent.FAILURE, NotifyEvent.RECOVERY)
    return "critical" if is_failure else "warning"


def _end(notification: Notification, *, is_test: bool) -> int:
    if is_test:
        return notification.create_time + _TEST_ENDS
    match notification.event:
        case NotifyEvent.FAILURE:
            return notification.create_time + _FAILURE_ENDS
        case NotifyEvent.RECOVERY:
            return notification.create_time
        case _:
            return notification.create_time + _PASSING_ENDS
