"""`operator api` and `operator metrics`: any call of the API, and what is measured."""

import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import click

from daemon.cli.client import Client
from daemon.cli.options import connected
from storage.errors import Invalid


@click.command()
@click.argument("path")
@click.option("-X", "method", metavar="METHOD", help="[default: GET, with a body PUT]")
@click.option("-d", "--data", "body", metavar="TEXT", help="The body; @FILE: of a file; -: typed.")
@click.option("-f", "--filter", "wanted", metavar="EXPRESSION", help="What a list is to hold.")
@connected
def api(
    client: Client, *, path: str, method: str | None, body: str | None, wanted: str | None
) -> None:
    """Ask for PATH (/v1/jobs) with the address, the token and the namespace of any command.

    Example: steward operator api -X POST /v1/system/gc
    """
    target = urlsplit(path if path.startswith(("/", "http")) else f"/{path}")
    if target.netloc and target.netloc != urlsplit(client.connection.address).netloc:
        raise Invalid(
            f"{target.netloc} is not the daemon: give a path, and the daemon with -address"
        )
    query = dict(parse_qsl(target.query, keep_blank_values=True))
    if wanted is not None:
        query["filter"] = wanted
    how = (method or ("GET" if body is None else "PUT")).upper()
    answer = client.call(how, target.path, _content(body), **query)
    sys.stdout.buffer.write(answer.body)
    if answer.body and not answer.body.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")


def _content(body: str | None) -> bytes | None:
    if body is None:
        return None
    if body == "-":
        return sys.stdin.buffer.read()
    if not body.startswith("@"):
        return body.encode()
    try:
        return Path(body[1:]).read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {body[1:]}: {error}") from error


@click.command()
@click.option("--pretty", is_flag=True, help="Print JSON with indentation.")
@click.option(
    "--format", "form", type=click.Choice(["json", "prometheus"]), default="json", help="As what."
)
@connected
def metrics(client: Client, *, pretty: bool, form: str) -> None:
    """Print what is measured: of the daemon, its queues, the machine and its tasks.

    Example: steward operator metrics -format prometheus
    """
    query = {"format": "prometheus"} if form == "prometheus" else {}
    if pretty:
        query["pretty"] = "true"
    sys.stdout.buffer.write(client.read("/v1/metrics", **query).body.rstrip() + b"\n")
