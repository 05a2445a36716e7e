"""The settings with which the daemon runs, as people may see them who may look at it."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from daemon.config import FIELDS, Config
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.codec import encode

_HIDDEN = "…"  # in the place of what may be secret


class Setting(Record, frozen=True, kw_only=True):
    """A setting, by its name in the configuration; what may be secret of its value is left out."""

    name: str
    value: str  # empty: the daemon finds it out itself
    default: str
    is_changed: bool


def index(request: Request, _db: Snapshot) -> Reply:
    """List the settings of this daemon."""
    config = request.parts.config
    return Reply(body=[_setting(config, name) for name in FIELDS])


def _setting(config: Config, name: str) -> Setting:
    value, usual = getattr(config, name), getattr(_USUAL, name)
    return Setting(
        name=name, value=told(name, value), default=told(name, usual), is_changed=value != usual
    )


_USUAL = Config()


def told(name: str, value: object) -> str:
    """Return a value as the configuration has it, without what may be secret."""
    if name == "notify_commands":  # what a program is told on its line may be anything
        commands = cast("Mapping[str, list[str]]", value)
        value = {
            key: [words[0], *([_HIDDEN] if words[1:] else [])] for key, words in commands.items()
        }
    if isinstance(value, str) and "://" in value:
        return _without_secrets(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return "" if value == Path() else str(value)
    if isinstance(value, str | int):
        return str(value)
    return encode(value).decode() if value else ""


def _without_secrets(address: str) -> str:
    """Return an address without its user, password and query."""
    try:
        parts = urlsplit(address)
    except ValueError:  # it is none
        return _HIDDEN
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{_HIDDEN}@{host}" if user else host
    return parts._replace(netloc=netloc, query=_HIDDEN if parts.query else "").geturl()
