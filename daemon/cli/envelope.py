"""Answers of the secrets side: what is in their envelope, and how it is printed."""

import msgspec

from daemon.cli.client import Answer
from daemon.cli.output import Screen


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the secrets side."""

    data: dict[str, object] | None = None
    auth: dict[str, object] | None = None
    wrap_info: dict[str, object] | None = None
    warnings: list[str] | None = None


def show(screen: Screen, answer: Answer) -> None:
    """Print what is in an answer: a token, an answer that waits, or facts."""
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = answer.decode(Envelope)
    for warning in found.warnings or ():
        screen.warn(f"warning: {warning}")
    facts(screen, found.auth or found.wrap_info or found.data or {})


def facts(screen: Screen, found: dict[str, object]) -> None:
    """Print names and values, by name."""
    screen.facts([(name, text(value)) for name, value in sorted(found.items())])


def text(value: object) -> str:
    """Return a value of an answer as text."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in sorted(value.items()))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
