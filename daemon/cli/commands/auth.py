"""`auth`: list, enable, tune and disable login methods."""

from collections.abc import Callable, Mapping

import click

from daemon.cli.commands.vault_paths import address
from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import Command, with_output, with_vault_client
from daemon.cli.core.output import Screen
from daemon.cli.core.vault_envelope import VaultResponse

_ABOUT_TOKENS = (
    click.option("--description", help="Description for users."),
    click.option("--default-lease-ttl", metavar="SPAN", help="Default TTL of its tokens."),
    click.option("--max-lease-ttl", metavar="SPAN", help="Maximum TTL of its tokens."),
    click.option("--token-type", help="default-service, default-batch, service or batch."),
    click.option("--listing-visibility", help="unauth: listed without a token; else hidden."),
)


def _about_tokens(command: Command) -> Command:
    options: tuple[Callable[[Command], Command], ...] = _ABOUT_TOKENS
    for option in reversed(options):
        command = option(command)
    return command


@click.command(name="list")
@with_output
@with_vault_client
def index(client: ApiClient, screen: Screen) -> None:
    """List the login methods by path.

    Example: steward auth list
    """
    answer = client.read("/v1/sys/auth")
    if screen.wants_document:
        screen.document(answer.checked(VaultResponse))
        return
    methods = answer.decode(VaultResponse).data or {}
    rows = [
        [path, *(str(mount.get(name) or "") for name in ("type", "accessor", "description"))]
        for path, mount in sorted(methods.items())
        if isinstance(mount, Mapping)
    ]
    screen.table(["Path", "Type", "Accessor", "Description"], rows)


@click.command()
@click.argument("kind", metavar="TYPE")
@click.option("--path", default="", help="Mount path [default: TYPE].")
@_about_tokens
@with_output
@with_vault_client
def enable(
    client: ApiClient,
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
    mount_path = (path or kind).strip("/")
    body = {"type": kind, "description": description or "", "config": _given_options(config)}
    warnings = client.act("POST", address(f"sys/auth/{mount_path}"), body)
    screen.report_change(f"{kind} is enabled at {mount_path}/", warnings)


@click.command()
@click.argument("path")
@_about_tokens
@with_output
@with_vault_client
def tune(client: ApiClient, screen: Screen, path: str, **changes: str) -> None:
    """Change the token settings of the login method at PATH.

    Example: steward auth tune -default-lease-ttl 1h cloudid
    """
    if not (options := _given_options(changes)):
        raise click.UsageError(
            "no changes given: pass at least one option, such as -description or -max-lease-ttl"
        )
    warnings = client.act("POST", address(f"sys/auth/{path.strip('/')}/tune"), options)
    screen.report_change(f"{path.strip('/')}/ was tuned", warnings)


@click.command()
@click.argument("path")
@with_output
@with_vault_client
def disable(client: ApiClient, screen: Screen, path: str) -> None:
    """Disable the login method at PATH, and revoke all its tokens.

    Example: steward auth disable cloudid
    """
    warnings = client.act("DELETE", address(f"sys/auth/{path.strip('/')}"))
    screen.report_deletion(f"{path.strip('/')}/ was disabled", warnings)


def _given_options(options: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
