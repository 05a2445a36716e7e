"""`token …`: tokens of the Vault API."""

from collections.abc import Sequence
from pathlib import Path

import click

from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import Integer, with_output, with_vault_client
from daemon.cli.core.output import Screen
from daemon.cli.core.token_source import prompt_secret
from daemon.cli.core.vault_envelope import VaultResponse, show
from storage.errors import Invalid

_INCREMENT = click.option("--increment", default="", metavar="SPAN", help="TTL from now on.")
_ACCESSOR = click.option("--accessor", is_flag=True, help="TOKEN is an accessor.")
_TOKEN = click.argument("identifier", default="", metavar="[TOKEN]")


@click.command()
@click.option("--policy", "policies", multiple=True, help="Policy; repeatable.")
@click.option("--ttl", default="", metavar="SPAN", help="TTL.")
@click.option(
    "--explicit-max-ttl", default="", metavar="SPAN", help="Maximum TTL, including renewals."
)
@click.option(
    "--period", default="", metavar="SPAN", help="TTL after each renewal, without a maximum TTL."
)
@click.option("--use-limit", "num_uses", type=Integer(0), default=0, help="Maximum number of uses.")
@click.option("--display-name", default="", help="Display name.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--role", default="", help="Role that defines the token.")
@click.option("--type", "kind", default="", help="service or batch.")
@click.option("--orphan", is_flag=True, help="Do not revoke the token together with its parent.")
@click.option("--no-default-policy", is_flag=True, help="Leave out the policy default.")
@click.option("--renewable/--not-renewable", default=True, help="Whether the token can be renewed.")
@with_output
@with_vault_client
def create(client: ApiClient, screen: Screen, *, role: str, **options: object) -> None:
    """Create a token with at most the capabilities of the token in use.

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
    fields = {name: value for name, value in body.items() if value not in ("", 0, (), {})}
    show(screen, client.send("POST", path, fields))


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise Invalid(f"--metadata {text!r} is not of the form KEY=VALUE")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


@click.command()
@_TOKEN
@_ACCESSOR
@with_output
@with_vault_client
def lookup(client: ApiClient, screen: Screen, identifier: str, *, accessor: bool) -> None:
    """Show TOKEN (-: prompt); without TOKEN, show the token in use.

    Example: steward token lookup -accessor 2f0d1c3a
    """
    if not identifier:
        show(screen, client.read("/v1/auth/token/lookup-self"))
    elif accessor:
        body = {"accessor": resolve.accessor(client, identifier)}
        show(screen, client.send("POST", "/v1/auth/token/lookup-accessor", body))
    else:
        show(screen, client.send("POST", "/v1/auth/token/lookup", {"token": _secret(identifier)}))


@click.command()
@_TOKEN
@_ACCESSOR
@_INCREMENT
@with_output
@with_vault_client
def renew(
    client: ApiClient, screen: Screen, identifier: str, *, accessor: bool, increment: str
) -> None:
    """Renew TOKEN (-: prompt); without TOKEN, renew the token in use.

    Example: steward token renew -increment 1h
    """
    body = {"increment": increment} if increment else {}
    if not identifier:
        answer = client.send("POST", "/v1/auth/token/renew-self", body)
    elif accessor:
        body["accessor"] = resolve.accessor(client, identifier)
        answer = client.send("POST", "/v1/auth/token/renew-accessor", body)
    else:
        answer = client.send("POST", "/v1/auth/token/renew", {**body, "token": _secret(identifier)})
    show(screen, answer)


@click.command()
@_TOKEN
@_ACCESSOR
@click.option("--self", "own", is_flag=True, help="The token in use.")
@click.option("--mode", type=click.Choice(["orphan"]), help="orphan: keep its children.")
@with_output
@with_vault_client
def revoke(
    client: ApiClient,
    screen: Screen,
    identifier: str,
    *,
    accessor: bool,
    own: bool,
    mode: str | None,
) -> None:
    """Revoke TOKEN (-: prompt), and all tokens created with it.

    Example: steward token revoke -self
    """
    if own == bool(identifier):
        raise click.UsageError("no token given: name a token, or pass --self for the token in use")
    if own:
        warnings = client.act("POST", "/v1/auth/token/revoke-self")
    elif accessor:
        body = {"accessor": resolve.accessor(client, identifier)}
        warnings = client.act("POST", "/v1/auth/token/revoke-accessor", body)
    else:
        path = "/v1/auth/token/revoke-orphan" if mode else "/v1/auth/token/revoke"
        warnings = client.act("POST", path, {"token": _secret(identifier)})
    screen.report_deletion("the token was revoked", warnings)


@click.command()
@click.argument("words", metavar="[TOKEN] PATH", nargs=-1, required=True)
@_ACCESSOR
@with_output
@with_vault_client
def capabilities(
    client: ApiClient, screen: Screen, words: tuple[str, ...], *, accessor: bool
) -> None:
    """Print the capabilities of TOKEN (-: prompt) at PATH; without TOKEN, of the token in use.

    Example: steward token capabilities secret/data/web
    """
    *tokens, path = words
    if len(tokens) > 1:
        raise click.UsageError("wrong number of arguments: pass a token and a path, or only a path")
    if not tokens:
        answer = client.send("POST", "/v1/sys/capabilities-self", {"paths": [path]})
    elif accessor:
        body = {"accessor": resolve.accessor(client, tokens[0]), "paths": [path]}
        answer = client.send("POST", "/v1/sys/capabilities-accessor", body)
    else:
        body = {"token": _secret(tokens[0]), "paths": [path]}
        answer = client.send("POST", "/v1/sys/capabilities", body)
    if screen.wants_document:
        screen.document(answer.checked(VaultResponse))
        return
    granted = (answer.decode(VaultResponse).data or {}).get("capabilities")
    screen.line(", ".join(map(str, granted)) if isinstance(granted, list) else "deny")


def _secret(token: str) -> str:
    """Return the argument as a token. For `-`, prompt for the token; for `@FILE`, read the file."""
    if token == "-":  # noqa: S105  # asks for a prompt
        return prompt_secret("Token")
    return Path(token[1:]).read_text().strip() if token.startswith("@") else token
