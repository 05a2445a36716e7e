"""`var`: put, read, list and delete variables.

Values can come from a file or from standard input, because every user on the host can read the
arguments of a command.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from daemon.cli.core.files import reason_of
from daemon.cli.core.formatting import format_time
from daemon.cli.core.http_client import ApiClient, ClientResponse, RequestRejected, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid, NotFound, StewardError
from storage.records.variable import Variable, VariableMetadata

CONFLICT = 409
_CHECK = click.option(
    "--check-index",
    type=Integer(0),
    metavar="N",
    help="Fail unless the last change was at index N; 0: fail unless it is new.",
)


class VariableConflict(StewardError):
    """The variable has changed since the caller read it."""


@click.command()
@click.argument("path")
@click.argument("items", metavar="NAME=VALUE...", nargs=-1)
@_CHECK
@click.option("--force", is_flag=True, help="Replace all values unconditionally.")
@with_output
@with_client
def put(
    client: ApiClient,
    screen: Screen,
    path: str,
    items: tuple[str, ...],
    *,
    check_index: int | None,
    force: bool,
) -> None:
    """Add values to the variable at PATH, or change them.

    If VALUE is @FILE, the value is read from the file. With - instead of NAME=VALUE, all values are
    read from standard input as a JSON object. With --force or --check-index, all existing values
    are replaced.

    Example: steward var put jobs/web password=@password.txt
    """
    new_items = _given(items)
    present = None if force or check_index is not None else _present(client, path)
    if present is not None:
        new_items, check_index = {**present.items, **new_items}, present.modify_index
    elif not force and check_index is None:
        check_index = 0
    answer = _changed(
        client, "PUT", path, {"Path": path, "Items": new_items}, None if force else check_index
    )
    if screen.wants_document:
        screen.document(answer.checked(Variable))
        return
    done = answer.decode(Variable)
    screen.line(f'variable "{done.path}" was written, at index {done.modify_index}')
    screen.hint(f"Read it with: steward var get {done.path}")


@click.command()
@click.argument("path")
@click.option("--item", default="", metavar="NAME", help="Print only this value.")
@with_output
@with_client
def get(client: ApiClient, screen: Screen, path: str, *, item: str) -> None:
    """Print the values at PATH.

    Example: steward var get -item password jobs/web
    """
    answer = client.read(address_of(path))
    variable = answer.decode(Variable)
    if item:
        if item not in variable.items:
            names = ", ".join(sorted(variable.items))
            raise NotFound(f'variable "{path}" has no value {item!r}, only: {names}')
        screen.value(variable.items[item])
        return
    if screen.wants_document:
        screen.document(answer.body)
        return
    screen.facts(
        [
            ("Namespace", variable.namespace),
            ("Path", variable.path),
            ("Create Time", format_time(variable.create_time)),
            ("Modify Time", format_time(variable.modify_time)),
            ("Check Index", str(variable.modify_index)),
        ]
    )
    screen.title("Items")
    screen.facts(sorted(variable.items.items()))


@click.command(name="list")
@click.argument("prefix", default="")
@with_output
@with_client
def index(client: ApiClient, screen: Screen, prefix: str) -> None:
    """List the variables whose path begins with PREFIX.

    Example: steward var list jobs/
    """
    answer = client.read("/v1/vars", prefix=prefix)
    if screen.wants_document:
        screen.document(answer.checked(list[VariableMetadata]))
        return
    stubs = answer.decode(list[VariableMetadata])
    if not stubs:
        screen.line("No variables")
        return
    screen.table(
        ["Namespace", "Path", "Last Updated"],
        [[stub.namespace, stub.path, format_time(stub.modify_time)] for stub in stubs],
    )


@click.command()
@click.argument("path")
@_CHECK
@with_output
@with_client
def purge(client: ApiClient, screen: Screen, path: str, *, check_index: int | None) -> None:
    """Delete the variable at PATH.

    Example: steward var purge jobs/web
    """
    warnings = _changed(client, "DELETE", path, None, check_index).warnings()
    screen.report_deletion(f'variable "{path}" was deleted', warnings)


def _changed(
    client: ApiClient, method: str, path: str, body: object, check_index: int | None
) -> ClientResponse:
    """Change a variable. Raises `VariableConflict`, and the errors of the client."""
    query: dict[str, int] = {} if check_index is None else {"cas": check_index}
    try:
        return client.send(method, address_of(path), body, **query)
    except RequestRejected as error:
        if error.status != CONFLICT:
            raise
        raise VariableConflict(
            f'variable "{path}" has changed, or is locked: read it again with "steward var get", '
            'or overwrite it with "steward var put --force"'
        ) from None


def _present(client: ApiClient, path: str) -> Variable | None:
    try:
        return client.fetch(address_of(path), Variable)
    except RequestRejected as error:
        if error.status == 404:
            return None
        raise


def address_of(path: str) -> str:
    """Return the API path of a variable."""
    return "/v1/var/" + "/".join(map(segment, path.split("/")))


def _given(items: tuple[str, ...]) -> Mapping[str, str]:
    """Return the values that the arguments give. Raises `Invalid`."""
    if items == ("-",):
        return decode_items(sys.stdin.buffer.read())
    values = {}
    for argument in items:
        name, equals, value = argument.partition("=")
        if not equals or not name:
            raise Invalid(f"{argument!r} is not of the form NAME=VALUE")
        values[name] = _content(value[1:]) if value.startswith("@") else value
    if not values:
        raise Invalid("no values given: pass NAME=VALUE, NAME=@FILE, or - to read them as JSON")
    return values


def decode_items(text: bytes) -> Mapping[str, str]:
    """Return the values of a JSON object. Raises `Invalid`."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise Invalid(
            f'standard input is not a JSON object such as {{"a": "1"}}: {error}'
        ) from None


def _content(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {file}: {reason_of(error)}") from error
