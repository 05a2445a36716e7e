"""`auth`: login methods, listed, enabled, tuned and disabled."""

from collections.abc import Callable, Mapping

import click

from daemon.cli.client import Client
from daemon.cli.envelope import Envelope
from daemon.cli.options import Command, connected_to_secrets, shown
from daemon.cli.output import Screen
from daemon.cli.path import address

_ABOUT_TOKENS = (
    click.option("--description", help="What people should know of it."),
    click.option("--default-lease-ttl", metavar="SPAN", help="How long its tokens live."),
    click.option("--max-lease-ttl", metavar="SPAN", help="How long they live at most."),
    click.option("--token-type", help="default-service, default-batch, service or batch."),
    click.option("--listing-visibility", help="unauth: who has no token sees it; else hidden."),
)


def _about_tokens(command: Command) -> Command:
    options: tuple[Callable[[Command], Command], ...] = _ABOUT_TOKENS
    for option in reversed(options):
        command = option(command)
    return command


@click.command(name="list")
@shown
@connected_to_secrets
def index(client: Client, screen: Screen) -> None:
    """List the login methods by path.

    Example: steward auth list
    """
    answer = client.read("/v1/sys/auth")
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = answer.decode(Envelope).data or {}
    rows = [
        [path, *(str(one.get(name) or "") for name in ("type", "accessor", "description"))]
        for path, one in sorted(found.items())
        if isinstance(one, Mapping)
    ]
    screen.table(["Path", "Type", "Accessor", "Description"], rows)


@click.command()
@click.argument("kind", metavar="TYPE")
@click.option("--path", default="", help="Where it is [default: TYPE].")
@_about_tokens
@shown
@connected_to_secrets
def enable(
    client: Client,
    screen: Screen,
    kind: str,
    *,
    path: str,
    description: str | None,
    **config: str,
) -> None:
    """Enable a login method of TYPE.

    Example: steward auth enable -description "Machines" cloudid
    """
    place = (path or kind).strip("/")
    body = {"type": kind, "description": description or "", "config": _said(config)}
    client.send("POST", address(f"sys/auth/{place}"), body)
    screen.told(f"{kind} is enabled at {place}/")


@click.command()
@click.argument("path")
@_about_tokens
@shown
@connected_to_secrets
def tune(client: Client, screen: Screen, path: str, **changes: str) -> None:
    """Change what the login method at PATH says about its tokens.

    Example: steward auth tune -default-lease-ttl 1h cloudid
    """
    if not (said := _said(changes)):
        raise click.UsageError("say what is to be changed")
    client.send("POST", address(f"sys/auth/{path.strip('/')}/tune"), said)
    screen.told(f"{path.strip('/')}/ is tuned")


@click.command()
@click.argument("path")
@shown
@connected_to_secrets
def disable(client: Client, screen: Screen, path: str) -> None:
    """Disable the login method at PATH, and end every token that it has issued.

    Example: steward auth disable cloudid
    """
    client.send("DELETE", address(f"sys/auth/{path.strip('/')}"))
    screen.told(f"{path.strip('/')}/ is disabled")


def _said(options: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
