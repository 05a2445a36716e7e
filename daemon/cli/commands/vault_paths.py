"""`read`, `write`, `list`, `delete`: any path of the Vault API."""

import sys
from pathlib import Path

import click
import msgspec

from daemon.cli.core.files import reason_of
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import shown_values, with_output, with_vault_client
from daemon.cli.core.output import Screen
from daemon.cli.core.vault_envelope import VaultResponse, show, text
from storage.errors import Invalid, NotFound

_FIELD = click.option("--field", default="", metavar="NAME", help="Print only this value.")
_FIELDS = click.argument("fields", metavar="[NAME=VALUE...]", nargs=-1)


@click.command()
@click.argument("path")
@_FIELDS
@_FIELD
@shown_values
@with_vault_client
def read(
    client: ApiClient, screen: Screen, path: str, fields: tuple[str, ...], *, field: str
) -> None:
    """Print the data at PATH.

    Example: steward read -field token_policies auth/cloudid/role/web
    """
    query = {name: str(value) for name, value in given(fields).items()}
    _print(screen, client.read(address(path), **query), field)


@click.command()
@click.argument("path")
@_FIELDS
@_FIELD
@click.option("-f", "--force", is_flag=True, help="Send no values.")
@shown_values
@with_vault_client
def write(
    client: ApiClient,
    screen: Screen,
    path: str,
    fields: tuple[str, ...],
    *,
    field: str,
    force: bool,
) -> None:
    """Write to PATH.

    If VALUE is @FILE, the value is read from the file. With - instead of NAME=VALUE, all values are
    read from standard input as a JSON object.

    Example: steward write auth/cloudid/role/web token_policies=web
    """
    if not fields and not force:
        raise Invalid("nothing to write: pass NAME=VALUE, - to read JSON, or --force")
    answer = client.send("POST", address(path), given(fields))
    if not answer.body:
        screen.report(f"written to {path}")
        return
    _print(screen, answer, field)


@click.command(name="list")
@click.argument("path")
@with_output
@with_vault_client
def index(client: ApiClient, screen: Screen, path: str) -> None:
    """Print the names below PATH.

    Example: steward list auth/cloudid/role
    """
    answer = client.read(address(path), list="true")
    if screen.wants_document:
        screen.document(answer.checked(VaultResponse))
        return
    keys = (answer.decode(VaultResponse).data or {}).get("keys")
    for key in keys if isinstance(keys, list) else ():
        screen.line(str(key))


@click.command()
@click.argument("path")
@with_output
@with_vault_client
def delete(client: ApiClient, screen: Screen, path: str) -> None:
    """Delete the data at PATH.

    Example: steward delete auth/cloudid/role/web
    """
    warnings = client.act("DELETE", address(path))
    screen.report_deletion(f"removed: {path}", warnings)


def address(path: str) -> str:
    """Return the API path of a Vault path."""
    return "/v1/" + "/".join(map(segment, path.strip("/").split("/")))


def given(fields: tuple[str, ...]) -> dict[str, object]:
    """Return the values that the arguments give. Raises `Invalid`."""
    if fields == ("-",):
        try:
            return msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, object])
        except msgspec.DecodeError as error:
            raise Invalid(f"standard input is not a JSON object: {error}") from None
    values: dict[str, object] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise Invalid(f"{field!r} is not of the form NAME=VALUE")
        before = values.get(name)
        content = _content(value)
        values[name] = content if before is None else [*_as_list(before), content]
    return values


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _content(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {value[1:]}: {reason_of(error)}") from error


def _print(screen: Screen, answer: ClientResponse, field: str) -> None:
    if not field:
        show(screen, answer)
        return
    response = answer.decode(VaultResponse)
    values = response.auth or response.data or {}
    if field not in values:
        raise NotFound(f"there is no {field!r}, only: {', '.join(sorted(values))}")
    screen.value(text(values[field]))
