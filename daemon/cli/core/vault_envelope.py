"""Responses of the Vault API: their envelope, and its output as text."""

import msgspec

from daemon.cli.core.http_client import ClientResponse
from daemon.cli.core.output import Screen


class VaultResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the Vault API."""

    data: dict[str, object] | None = None
    auth: dict[str, object] | None = None
    wrap_info: dict[str, object] | None = None
    warnings: list[str] | None = None


def show(screen: Screen, answer: ClientResponse) -> None:
    """Print the content of a response: a token, a wrapped response, or values."""
    if screen.wants_document:
        screen.document(answer.checked(VaultResponse))
        return
    response = answer.decode(VaultResponse)
    for warning in response.warnings or ():
        screen.warn(f"warning: {warning}")
    facts(screen, response.auth or response.wrap_info or response.data or {})


def facts(screen: Screen, fields: dict[str, object]) -> None:
    """Print names and values, sorted by name."""
    screen.facts([(name, text(value)) for name, value in sorted(fields.items())])


def text(value: object) -> str:
    """Format a value of a response."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={part}" for key, part in sorted(value.items()))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
