"""Validation of the notification receivers in the configuration."""

import re
from collections.abc import Container, Iterator, Mapping
from urllib.parse import urlsplit

from daemon.config.settings import is_loopback
from storage.errors import Invalid
from storage.records.notification import Encryption, Receiver, ReceiverKind, read_webhook

MOST = 32
_RESERVED = ("webhook", "command")  # metrics use these labels for the channels that jobs define
_LONGEST_GROUP = 3600  # seconds
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# These characters suffice for an address, and none of them ends a header or separates addresses.
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}")
_SERVER = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET = ("secret_file", "secret_env")
# Required fields of each kind, and its optional fields.
_NEEDS: Mapping[ReceiverKind, frozenset[str]] = {
    ReceiverKind.WEBHOOK: frozenset({"url", "secret"}),
    ReceiverKind.EMAIL: frozenset({"server", "from", "to"}),
    ReceiverKind.SLACK: frozenset({"secret"}),
    ReceiverKind.NTFY: frozenset({"url"}),
    ReceiverKind.ALERTMANAGER: frozenset({"url"}),
}
_MAY_HAVE: Mapping[ReceiverKind, frozenset[str]] = {
    ReceiverKind.WEBHOOK: frozenset(),
    ReceiverKind.EMAIL: frozenset({"user", "tls", "ca_file", "secret"}),
    ReceiverKind.SLACK: frozenset(),
    ReceiverKind.NTFY: frozenset({"secret"}),
    ReceiverKind.ALERTMANAGER: frozenset({"secret"}),
}


def server_of(text: str) -> tuple[str, int]:
    """Return host and port of a mail server. Raises `Invalid`."""
    match = _SERVER.fullmatch(text)
    port = int(match[3]) if match else 0
    if not match or not 1 <= port <= 65535:
        raise Invalid("write HOST:PORT, such as smtp.example.com:587")
    return match[1] or match[2], port


def topic_of(url: str) -> tuple[str, str]:
    """Return the server URL and the topic of an ntfy URL. Raises `Invalid`."""
    base, _, topic = url.rpartition("/")
    read_webhook(url)
    if urlsplit(url).query or not urlsplit(base).hostname or not _TOPIC.fullmatch(topic):
        raise Invalid("write https://HOST/TOPIC; a topic has at most 64 letters, digits, - and _")
    return f"{base}/", topic


def faults_of_receivers(
    receivers: Mapping[str, Receiver], commands: Container[str]
) -> Iterator[str]:
    """Yield the faults of the receivers; `commands` are the names of `notify_commands`."""
    if len(receivers) > MOST:
        yield f"notify_receivers: there are {len(receivers)}; name at most {MOST}"
    for name, receiver in receivers.items():
        where = f"notify_receivers.{name}"
        if not _NAME.fullmatch(name) or name in _RESERVED:
            yield (
                f"{where}: a name has at most 64 letters, digits, - and _, and is not "
                f"{' or '.join(_RESERVED)}"
            )
        if name in commands:
            yield f"{where}: notify_commands has this name too; choose another one"
        yield from (f"{where}: {fault}" for fault in _faults(receiver))


def _faults(receiver: Receiver) -> Iterator[str]:
    fields_set, needed = _given(receiver), _NEEDS[receiver.kind]
    if lacking := sorted(needed - fields_set):
        names = [" or ".join(_SECRET) if name == "secret" else name for name in lacking]
        yield f'kind = "{receiver.kind}" needs {" and ".join(names)}'
        return
    if extra := sorted(fields_set - needed - _MAY_HAVE[receiver.kind]):
        yield f'kind = "{receiver.kind}" does not use {" and ".join(extra)}; remove it'
        return
    if receiver.secret_file and receiver.secret_env:
        yield "give secret_file or secret_env, not both"
    if receiver.secret_file and not receiver.secret_file.startswith("/"):
        yield f"secret_file = {receiver.secret_file!r}: write the absolute path"
    if not 0 <= receiver.group_seconds <= _LONGEST_GROUP:
        yield f"group_seconds = {receiver.group_seconds}: write a number from 0 to {_LONGEST_GROUP}"
    try:
        yield from (
            _faults_of_mail(receiver)
            if receiver.kind == ReceiverKind.EMAIL
            else _faults_of_url(receiver)
        )
    except Invalid as error:
        name = "server" if receiver.kind == ReceiverKind.EMAIL else "url"
        yield f"{name} = {getattr(receiver, name)!r}: {error}"


def _given(receiver: Receiver) -> frozenset[str]:
    names = {name for name in ("url", "server", "user", "ca_file", "to") if getattr(receiver, name)}
    if receiver.sender:
        names.add("from")
    if receiver.tls != Encryption.STARTTLS:
        names.add("tls")
    if receiver.secret_file or receiver.secret_env:
        names.add("secret")
    return frozenset(names)


def _faults_of_url(receiver: Receiver) -> Iterator[str]:
    if receiver.kind == ReceiverKind.NTFY:
        topic_of(receiver.url)
    elif receiver.url:
        read_webhook(receiver.url)
    if receiver.kind == ReceiverKind.ALERTMANAGER and urlsplit(receiver.url).query:
        yield f"url = {receiver.url!r}: write it without a query, such as http://HOST:9093"


def _faults_of_mail(receiver: Receiver) -> Iterator[str]:
    host, _ = server_of(receiver.server)
    for name, address in (("from", receiver.sender), *(("to", address) for address in receiver.to)):
        if not _ADDRESS.fullmatch(address):
            yield f"{name}: {address!r} is not a plain address such as ops@example.com"
    if bool(receiver.user) != bool(receiver.secret_file or receiver.secret_env):
        yield "user and a password (secret_file or secret_env) belong together: set both, or neither"
    if receiver.user and not (receiver.user.isascii() and receiver.user.isprintable()):
        yield f"user = {receiver.user!r}: write printable ASCII"
    if receiver.user and receiver.tls == Encryption.NONE and not is_loopback(host):
        yield f'tls = "none": others could read the password on its way to {host}; use starttls or tls'
    if receiver.ca_file and not receiver.ca_file.startswith("/"):
        yield f"ca_file = {receiver.ca_file!r}: write the absolute path"
