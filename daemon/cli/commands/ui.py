"""`ui`: a link to the web interface that signs the browser in."""

import os
import tempfile
import webbrowser
from html import escape
from http import HTTPStatus

import click
import msgspec

from daemon.cli.core.http_client import ApiClient, RequestRejected
from daemon.cli.core.options import DEFAULT_ADDRESS, with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.base import Record


class _OneTime(Record, frozen=True, kw_only=True):
    one_time_secret_id: str = ""


class _Made(Record, frozen=True, kw_only=True):
    one_time_token: _OneTime


@click.command()
@click.option("--open", "opens", is_flag=True, help="Also open it in a browser.")
@with_output
@with_client
def ui(client: ApiClient, screen: Screen, *, opens: bool) -> None:
    """Print a link to the web interface. If a token is set, the link signs the browser in.

    The link signs in only once, within ten minutes. Example: steward ui --open
    """
    address = client.connection.address
    link = f"{DEFAULT_ADDRESS if address.startswith('unix:') else address.rstrip('/')}/ui/"
    if client.connection.token and (secret := _one_time(client)):
        # Browsers do not send the part after # to servers, so it appears in no log. The page
        # submits it.
        link += f"sign-in#one-time={secret}"
    if screen.wants_document:
        screen.document(msgspec.json.encode({"Address": link}))
    else:
        screen.line(link)
    if opens:
        _open(link)


def _one_time(client: ApiClient) -> str:
    """Return a one-time token for signing in; an empty string if ACLs are disabled."""
    try:
        created = client.send("POST", "/v1/acl/token/onetime").decode(_Made)
    except RequestRejected as error:
        if error.status == HTTPStatus.BAD_REQUEST:
            return ""
        raise
    return created.one_time_token.one_time_secret_id


def _open(link: str) -> None:
    """Open a link in the browser, through a file that only this user can read.

    The link is not an argument of the browser, because every user on the host can read arguments.
    """
    descriptor, path = tempfile.mkstemp(prefix="steward-ui-", suffix=".html")
    with os.fdopen(descriptor, "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">')
    webbrowser.open(f"file://{path}")
