"""`operator api` and `operator metrics`: any API request, and the metrics."""

import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import click

from daemon.cli.core.files import reason_of
from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client
from daemon.text.control_characters import visible_lines
from storage.errors import Invalid


@click.command("api")
@click.argument("path")
@click.option("-X", "method", metavar="METHOD", help="[default: GET; PUT with a body]")
@click.option(
    "-d", "--data", "body", metavar="TEXT", help="Body; @FILE: from a file; -: standard input."
)
@click.option(
    "-f", "--filter", "expression", metavar="EXPRESSION", help="Filter expression for a list."
)
@with_client
def call_api(
    client: ApiClient, *, path: str, method: str | None, body: str | None, expression: str | None
) -> None:
    """Request PATH. The address, token and namespace are set as for every other command.

    Example: steward operator api -X POST /v1/system/gc
    """
    try:
        target = urlsplit(path if path.startswith(("/", "http")) else f"/{path}")
    except ValueError as error:
        raise Invalid(f"path {path!r}: {error}; write a path such as /v1/jobs") from None
    if target.netloc and target.netloc != urlsplit(client.connection.address).netloc:
        raise Invalid(
            f"{target.netloc} is not the daemon: pass a path, and set the daemon with -address"
        )
    query = dict(parse_qsl(target.query, keep_blank_values=True))
    if expression is not None:
        query["filter"] = expression
    how = (method or ("GET" if body is None else "PUT")).upper()
    answer = client.call(how, target.path, _content(body), **query)
    sys.stdout.buffer.write(answer.body)
    if answer.body and not answer.body.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    if answer.remarks:
        click.echo(visible_lines(f"warning: {answer.remarks}"), err=True)


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
        raise Invalid(f"cannot read {body[1:]}: {reason_of(error)}") from error


@click.command("metrics")
@click.option("--pretty", is_flag=True, help="Print indented JSON.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "prometheus"]),
    default="json",
    help="Output format.",
)
@with_client
def show_metrics(client: ApiClient, *, pretty: bool, form: str) -> None:
    """Print the metrics of the daemon, its queues, the host and the tasks.

    Example: steward operator metrics -format prometheus
    """
    query = {"format": "prometheus"} if form == "prometheus" else {}
    if pretty:
        query["pretty"] = "true"
    sys.stdout.buffer.write(client.read("/v1/metrics", **query).body.rstrip() + b"\n")
