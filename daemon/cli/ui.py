"""`ui`: the way to the web interface, for a browser that has not signed in."""

import os
import tempfile
import webbrowser
from html import escape
from http import HTTPStatus

import click
import msgspec

from daemon.cli.client import Client, Rejected
from daemon.cli.options import DEFAULT_ADDRESS, connected, shown
from daemon.cli.output import Screen
from storage.records.base import Record


class _OneTime(Record, frozen=True, kw_only=True):
    one_time_secret_id: str = ""


class _Made(Record, frozen=True, kw_only=True):
    one_time_token: _OneTime


@click.command()
@click.option("--open", "opens", is_flag=True, help="Open it in a browser as well.")
@shown
@connected
def ui(client: Client, screen: Screen, *, opens: bool) -> None:
    """Print the address of the web interface; with a token, one that signs in once.

    It works for ten minutes. Example: steward ui --open
    """
    address = client.connection.address
    link = f"{DEFAULT_ADDRESS if address.startswith('unix:') else address.rstrip('/')}/ui/"
    if client.connection.token and (secret := _one_time(client)):
        # Behind the # it is sent to nobody and stands in no log: the page shows it the daemon.
        link += f"sign-in#one-time={secret}"
    if screen.wants_document:
        screen.document(msgspec.json.encode({"Address": link}))
    else:
        screen.line(link)
    if opens:
        _open(link)


def _one_time(client: Client) -> str:
    """Return what signs in once; nothing where everybody may do everything."""
    try:
        made = client.send("POST", "/v1/acl/token/onetime").decode(_Made)
    except Rejected as error:
        if error.status == HTTPStatus.BAD_REQUEST:
            return ""
        raise
    return made.one_time_token.one_time_secret_id


def _open(link: str) -> None:
    """Open a link by a file that only this user can read.

    The arguments of a program can be read by everybody on the machine.
    """
    descriptor, path = tempfile.mkstemp(prefix="steward-ui-", suffix=".html")
    with os.fdopen(descriptor, "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">')
    webbrowser.open(f"file://{path}")
