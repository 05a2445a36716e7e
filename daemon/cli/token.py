"""`token …`: tokens of the secrets side."""

from collections.abc import Sequence
from pathlib import Path

import click

from daemon.cli import resolve
from daemon.cli.client import Client
from daemon.cli.envelope import Envelope, show
from daemon.cli.options import connected_to_secrets, shown
from daemon.cli.output import Screen
from daemon.cli.secret import ask
from storage.errors import Invalid

_INCREMENT = click.option("--increment", default="", metavar="SPAN", help="How long to live on.")
_ACCESSOR = click.option("--accessor", is_flag=True, help="TOKEN is an accessor.")
_TOKEN = click.argument("whose", default="", metavar="[TOKEN]")


@click.command()
@click.option("--policy", "policies", multiple=True, help="Policy; repeatable.")
@click.option("--ttl", default="", metavar="SPAN", help="How long it lives.")
@click.option("--explicit-max-ttl", default="", metavar="SPAN", help="How long it lives at most.")
@click.option("--period", default="", metavar="SPAN", help="It lives on by renewal, so long each.")
@click.option("--use-limit", "num_uses", type=int, default=0, help="How often it may be used.")
@click.option("--display-name", default="", help="Name, for people.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--role", default="", help="Role by whose name it is made.")
@click.option("--type", "kind", default="", help="service or batch.")
@click.option("--orphan", is_flag=True, help="It does not end with the token that makes it.")
@click.option("--no-default-policy", is_flag=True, help="Without the policy default.")
@click.option("--renewable/--not-renewable", default=True, help="Whether it may be renewed.")
@shown
@connected_to_secrets
def create(client: Client, screen: Screen, *, role: str, **options: object) -> None:
    """Make a token with the rights of the one that is used, or fewer.

    Example: steward token create -policy readers -ttl 1h
    """
    metadata = options.pop("metadata")
    body = {
        "policies": options.pop("policies"),
        "type": options.pop("kind"),
        "no_parent": options.pop("orphan"),
        "meta": _pairs(metadata if isinstance(metadata, tuple) else ()),
        **options,
    }
    path = f"/v1/auth/token/create/{role}" if role else "/v1/auth/token/create"
    given = {name: value for name, value in body.items() if value not in ("", 0, (), {})}
    show(screen, client.send("POST", path, given))


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise Invalid(f"--metadata {text!r} is not of the form KEY=VALUE")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


@click.command()
@_TOKEN
@_ACCESSOR
@shown
@connected_to_secrets
def lookup(client: Client, screen: Screen, whose: str, *, accessor: bool) -> None:
    """Describe TOKEN (-: asked for); without it, the one that is used.

    Example: steward token lookup -accessor 2f0d1c3a
    """
    if not whose:
        show(screen, client.read("/v1/auth/token/lookup-self"))
    elif accessor:
        body = {"accessor": resolve.accessor(client, whose)}
        show(screen, client.send("POST", "/v1/auth/token/lookup-accessor", body))
    else:
        show(screen, client.send("POST", "/v1/auth/token/lookup", {"token": _secret(whose)}))


@click.command()
@_TOKEN
@_ACCESSOR
@_INCREMENT
@shown
@connected_to_secrets
def renew(client: Client, screen: Screen, whose: str, *, accessor: bool, increment: str) -> None:
    """Let TOKEN (-: asked for) live on; without it, the one that is used.

    Example: steward token renew -increment 1h
    """
    body = {"increment": increment} if increment else {}
    if not whose:
        answer = client.send("POST", "/v1/auth/token/renew-self", body)
    elif accessor:
        body["accessor"] = resolve.accessor(client, whose)
        answer = client.send("POST", "/v1/auth/token/renew-accessor", body)
    else:
        answer = client.send("POST", "/v1/auth/token/renew", {**body, "token": _secret(whose)})
    show(screen, answer)


@click.command()
@_TOKEN
@_ACCESSOR
@click.option("--self", "own", is_flag=True, help="The token that is used.")
@click.option("--mode", type=click.Choice(["orphan"]), help="orphan: its children live on.")
@shown
@connected_to_secrets
def revoke(
    client: Client, screen: Screen, whose: str, *, accessor: bool, own: bool, mode: str | None
) -> None:
    """End TOKEN (-: asked for), and all that were made with it.

    Example: steward token revoke -self
    """
    if own == bool(whose):
        raise click.UsageError("name a token, or the one that is used with --self")
    if own:
        client.send("POST", "/v1/auth/token/revoke-self")
    elif accessor:
        body = {"accessor": resolve.accessor(client, whose)}
        client.send("POST", "/v1/auth/token/revoke-accessor", body)
    else:
        path = "/v1/auth/token/revoke-orphan" if mode else "/v1/auth/token/revoke"
        client.send("POST", path, {"token": _secret(whose)})
    screen.told("the token has ended")


@click.command()
@click.argument("words", metavar="[TOKEN] PATH", nargs=-1, required=True)
@_ACCESSOR
@shown
@connected_to_secrets
def capabilities(client: Client, screen: Screen, words: tuple[str, ...], *, accessor: bool) -> None:
    """Tell what TOKEN (-: asked for) may do at PATH; without it, the one that is used.

    Example: steward token capabilities secret/data/web
    """
    *whose, path = words
    if len(whose) > 1:
        raise click.UsageError("give a token and a path, or a path alone")
    if not whose:
        answer = client.send("POST", "/v1/sys/capabilities-self", {"paths": [path]})
    elif accessor:
        body = {"accessor": resolve.accessor(client, whose[0]), "paths": [path]}
        answer = client.send("POST", "/v1/sys/capabilities-accessor", body)
    else:
        body = {"token": _secret(whose[0]), "paths": [path]}
        answer = client.send("POST", "/v1/sys/capabilities", body)
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = (answer.decode(Envelope).data or {}).get("capabilities")
    screen.line(", ".join(map(str, found)) if isinstance(found, list) else "deny")


def _secret(token: str) -> str:
    """Return a secret: the one that was given, asked for, or in a file named after `@`."""
    if token == "-":  # noqa: S105  # a sign, no secret
        return ask("Token")
    return Path(token[1:]).read_text().strip() if token.startswith("@") else token
