"""`var`: variables, put, read, listed and removed.

Values may come from a file or from standard input, because a command line is seen by everybody on
the machine.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from daemon.cli.client import Answer, Client, Rejected, segment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.text import moment
from storage.errors import Invalid, NotFound, StewardError
from storage.records.variable import Variable, VariableMetadata

CONFLICT = 409
_CHECK = click.option(
    "--check-index",
    type=int,
    metavar="N",
    help="Only if it was changed last at index N; 0: only if there is none.",
)


class Moved(StewardError):
    """The variable is another one than the caller believes."""


@click.command()
@click.argument("path")
@click.argument("items", metavar="NAME=VALUE...", nargs=-1)
@_CHECK
@click.option("--force", is_flag=True, help="Whatever is there: replaces all values.")
@shown
@connected
def put(
    client: Client,
    screen: Screen,
    path: str,
    items: tuple[str, ...],
    *,
    check_index: int | None,
    force: bool,
) -> None:
    """Put values at PATH, beside those that are there.

    A VALUE @FILE is read from the file. With - in the place of NAME=VALUE, standard input gives
    all values as a JSON object. With --force or --check-index these values replace all others.

    Example: steward var put jobs/web password=@password.txt
    """
    given = _given(items)
    present = None if force or check_index is not None else _present(client, path)
    if present is not None:
        given, check_index = {**present.items, **given}, present.modify_index
    elif not force and check_index is None:
        check_index = 0
    answer = _changed(
        client, "PUT", path, {"Path": path, "Items": given}, None if force else check_index
    )
    if screen.wants_document:
        screen.document(answer.body)
        return
    done = answer.decode(Variable)
    screen.line(f'variable "{done.path}" is put, at index {done.modify_index}')
    screen.hint(f"Read it with: steward var get {done.path}")


@click.command()
@click.argument("path")
@click.option("--item", default="", metavar="NAME", help="Print this value alone.")
@shown
@connected
def get(client: Client, screen: Screen, path: str, *, item: str) -> None:
    """Print the values at PATH.

    Example: steward var get -item password jobs/web
    """
    answer = client.read(address_of(path))
    found = answer.decode(Variable)
    if item:
        if item not in found.items:
            known = ", ".join(sorted(found.items))
            raise NotFound(f'variable "{path}" has no value {item!r}, only: {known}')
        screen.line(found.items[item])
        return
    if screen.wants_document:
        screen.document(answer.body)
        return
    screen.facts(
        [
            ("Namespace", found.namespace),
            ("Path", found.path),
            ("Create Time", moment(found.create_time)),
            ("Modify Time", moment(found.modify_time)),
            ("Check Index", str(found.modify_index)),
        ]
    )
    screen.title("Items")
    screen.facts(sorted(found.items.items()))


@click.command(name="list")
@click.argument("prefix", default="")
@shown
@connected
def index(client: Client, screen: Screen, prefix: str) -> None:
    """List the variables whose path begins with PREFIX.

    Example: steward var list jobs/
    """
    answer = client.read("/v1/vars", prefix=prefix)
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = answer.decode(list[VariableMetadata])
    if not found:
        screen.line("No variables")
        return
    screen.table(
        ["Namespace", "Path", "Last Updated"],
        [[one.namespace, one.path, moment(one.modify_time)] for one in found],
    )


@click.command()
@click.argument("path")
@_CHECK
@shown
@connected
def purge(client: Client, screen: Screen, path: str, *, check_index: int | None) -> None:
    """Remove the variable at PATH.

    Example: steward var purge jobs/web
    """
    _changed(client, "DELETE", path, None, check_index)
    screen.told(f'variable "{path}" is removed')


def _changed(
    client: Client, method: str, path: str, body: object, check_index: int | None
) -> Answer:
    """Change a variable. Raises `Moved`, and what the client raises."""
    query: dict[str, int] = {} if check_index is None else {"cas": check_index}
    try:
        return client.send(method, address_of(path), body, **query)
    except Rejected as error:
        if error.status != CONFLICT:
            raise
        raise Moved(
            f'variable "{path}" has changed, or is locked: read it again with "steward var get", '
            "or put with --force"
        ) from None


def _present(client: Client, path: str) -> Variable | None:
    try:
        return client.fetch(address_of(path), Variable)
    except Rejected as error:
        if error.status == 404:
            return None
        raise


def address_of(path: str) -> str:
    """Return where the variable at a path is."""
    return "/v1/var/" + "/".join(map(segment, path.split("/")))


def _given(items: tuple[str, ...]) -> Mapping[str, str]:
    """Return the values that a command line names. Raises `Invalid`."""
    if items == ("-",):
        return decode_items(sys.stdin.buffer.read())
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise Invalid(f"{item!r} is not of the form NAME=VALUE")
        values[name] = _content(value[1:]) if value.startswith("@") else value
    if not values:
        raise Invalid("no values: give NAME=VALUE, NAME=@FILE, or - to read them as JSON")
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
        raise Invalid(f"cannot read {file}: {error}") from error
