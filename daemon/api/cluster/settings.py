"""The daemon's settings, without secrets, for callers with access to the agent."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from daemon.config.settings import FIELDS, Settings
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.notification import Receiver

_HIDDEN = "…"  # replaces a possible secret


class ShownSetting(Record, frozen=True, kw_only=True):
    """A setting, named as in the configuration; possible secrets in its value are hidden."""

    name: str
    value: str  # empty: the daemon determines it
    default: str
    is_changed: bool


def index(request: Request, _db: ReadSnapshot) -> HandlerReply:
    """List the settings of this daemon."""
    config = request.parts.config
    return HandlerReply(body=[_setting(config, name) for name in FIELDS])


def _setting(config: Settings, name: str) -> ShownSetting:
    value, usual = getattr(config, name), getattr(_USUAL, name)
    return ShownSetting(
        name=name,
        value=shown_value(name, value),
        default=shown_value(name, usual),
        is_changed=value != usual,
    )


_USUAL = Settings()


def shown_value(name: str, value: object) -> str:
    """Format the value of a setting as in the configuration, with possible secrets hidden."""
    if name == "notify_commands":  # the arguments of a program may contain secrets
        commands = cast("Mapping[str, list[str]]", value)
        value = {
            key: [words[0], *([_HIDDEN] if words[1:] else [])] for key, words in commands.items()
        }
    if name == "notify_receivers":
        receivers = cast("Mapping[str, Receiver]", value)
        value = {key: _receiver(receiver) for key, receiver in receivers.items()}
    if isinstance(value, str) and "://" in value:
        return _without_secrets(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return "" if value == Path() else str(value)
    if isinstance(value, str | int):
        return str(value)
    return encode(value).decode() if value else ""


def _receiver(receiver: Receiver) -> Receiver:
    """Return a receiver with the path of its URL hidden.

    The path of an ntfy URL contains the topic, which acts as a secret.
    """
    if not receiver.url:
        return receiver
    parts = urlsplit(receiver.url)
    return msgspec.structs.replace(receiver, url=f"{parts.scheme}://{parts.netloc}/{_HIDDEN}")


def _without_secrets(address: str) -> str:
    """Return a URL without its user name, password and query."""
    try:
        parts = urlsplit(address)
    except ValueError:  # not a valid URL
        return _HIDDEN
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{_HIDDEN}@{host}" if user else host
    return parts._replace(netloc=netloc, query=_HIDDEN if parts.query else "").geturl()
