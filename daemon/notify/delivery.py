"""Send notifications to a configured receiver, in the format that the receiver expects."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import trio

from daemon.net.http_client import Permit
from daemon.notify import message
from daemon.notify.channels import DeliveryFailed, RunCommand, run_command, send_webhook
from daemon.notify.message import Batch, NotificationWithContext
from storage.errors import Invalid
from storage.records.notification import Notification, NotifyEvent, Receiver, ReceiverKind

_LONGEST_SECRET = 4096  # bytes
_ALERTS = "/api/v2/alerts"
COMMAND = "command"  # the kind of a receiver that is one of `notify_commands`


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The receivers by name, and the functions that a delivery needs.

    `run` runs a command with a message. `now` returns nanoseconds since the epoch. `permit` raises
    `EgressDenied` for an address that must not receive messages. `node_name` is the name of this
    node.
    """

    receivers: Mapping[str, Receiver]
    commands: Mapping[str, Sequence[str]]
    permit: Permit
    now: Callable[[], int]
    node_name: str
    run: RunCommand = run_command

    @property
    def kinds(self) -> dict[str, str]:
        """Return the kind of each receiver and command by name."""
        kinds = {name: str(receiver.kind) for name, receiver in self.receivers.items()}
        return kinds | dict.fromkeys(self.commands, COMMAND)

    def sample(self, *, site: str) -> Batch:
        """Return a test batch; `site` is the address of the web UI."""
        now, node_name = self.now(), self.node_name
        notification = Notification(
            id=0,
            namespace="default",
            job_id="steward-notify-test",
            run_id="steward-notify-test",
            event=NotifyEvent.FAILURE,
            reason="this is a test of the receiver; no job failed",
            create_time=now,
            modify_time=now,
        )
        context = message.Context(host=node_name, link=f"{site}/ui" if site else "")
        return Batch(
            id=f"test-{now}",
            first=(NotificationWithContext(notification=notification, context=context),),
            node_name=node_name,
            is_test=True,
        )

    async def send(self, name: str, batch: Batch) -> str:
        """Send a batch to a receiver or command; return its response as text. Raises `DeliveryFailed`."""
        if name in self.commands:
            return await self.run(name, self.commands[name], message.batch_body(batch))
        receiver = self.receivers.get(name)
        if receiver is None:
            raise DeliveryFailed(f"the configuration has no receiver {name} in notify_receivers")
        secret = await trio.to_thread.run_sync(partial(secret_of, receiver, os.environ))
        if receiver.kind == ReceiverKind.EMAIL:
            from daemon.notify import mail  # imported late, because few daemons use it

            composed = mail.compose(batch, receiver, self.now())
            return await mail.send(composed, receiver, secret, self.node_name, self.permit)
        return await self._post(receiver, secret, batch)

    async def _post(self, receiver: Receiver, secret: str, batch: Batch) -> str:
        from daemon.config.notify_receivers import topic_of
        from daemon.notify import forms  # imported late, because few daemons use them

        headers: dict[str, str] = {}
        url = receiver.url
        match receiver.kind:
            case ReceiverKind.WEBHOOK:
                body = message.batch_body(batch)
                headers = message.signature(batch.id, self.now(), body, _key(secret))
            case ReceiverKind.SLACK:
                url, body = secret, forms.slack(batch)
            case ReceiverKind.NTFY:
                url, topic = topic_of(url)
                body = forms.ntfy(batch, topic)
            case _:
                url, body = url.rstrip("/") + _ALERTS, forms.alertmanager(batch)
        if secret and receiver.kind in (ReceiverKind.NTFY, ReceiverKind.ALERTMANAGER):
            headers["authorization"] = f"Bearer {secret}"
        try:
            return await send_webhook(url, headers, body, self.permit)
        except DeliveryFailed as problem:
            if not secret or secret not in f"{problem}{problem.answer}":
                raise
            raise _hide_secret(problem, secret) from None


def _hide_secret(problem: DeliveryFailed, secret: str) -> DeliveryFailed:
    """Return a copy of an error with the secret removed from its texts.

    The secret of a Slack receiver is the URL, which an error can contain.
    """
    hidden = "(hidden)"
    return DeliveryFailed(
        str(problem).replace(secret, hidden),
        final=problem.final,
        answer=problem.answer.replace(secret, hidden),
    )


def _key(secret: str) -> bytes:
    try:
        return message.read_secret(secret)
    except Invalid as error:
        raise DeliveryFailed(f"the secret {error}") from error


def secret_of(receiver: Receiver, environment: Mapping[str, str]) -> str:
    """Return the secret of a receiver, empty if it has none. Raises `DeliveryFailed`."""
    if receiver.secret_env:
        secret = environment.get(receiver.secret_env, "")
        if not secret:
            raise DeliveryFailed(f"the daemon has no environment variable {receiver.secret_env}")
        return _checked(secret, receiver.secret_env)
    if receiver.secret_file:
        return _checked(_content(receiver.secret_file), receiver.secret_file)
    return ""


def _content(path: str) -> str:
    try:
        # Non-blocking, because opening a pipe would block the thread until there is a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise DeliveryFailed(f"secret_file {path} is not a file")
            if facts.st_mode & stat.S_IROTH:
                raise DeliveryFailed(
                    f"every user can read secret_file {path}: run chmod o-r {path}"
                )
            return file.read(_LONGEST_SECRET + 1).decode(errors="replace").strip()
    except OSError as error:
        raise DeliveryFailed(f"secret_file {path} cannot be read: {error.strerror}") from error


def _checked(secret: str, where: str) -> str:
    if (
        not secret
        or len(secret) > _LONGEST_SECRET
        or not (secret.isascii() and secret.isprintable())
    ):
        raise DeliveryFailed(
            f"{where} does not hold a secret: write 1 to {_LONGEST_SECRET} printable ASCII characters"
        )
    return secret
