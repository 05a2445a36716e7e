"""`policy …`: policies of the Vault API, and why a request is allowed or rejected."""

from pathlib import Path

import click

from daemon.cli.commands.acl import read_text
from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_output, with_vault_client
from daemon.cli.core.output import Screen
from daemon.cli.core.policy_format import formatted
from daemon.cli.core.token_source import prompt_secret
from daemon.cli.core.vault_envelope import VaultResponse
from storage.errors import Invalid
from storage.records.base import Record

_POLICIES = "/v1/sys/policies/acl"
EXIT_REFUSED = 2


class PolicyDecisionView(Record, frozen=True, kw_only=True):
    """The decision about a request, with its reason."""

    allowed: bool
    needs: str
    rule: str = ""
    policies: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    reason: str = ""


@click.command()
@with_output
@with_vault_client
def index(client: ApiClient, screen: Screen) -> None:
    """List the policies.

    Example: steward policy list
    """
    answer = client.read(_POLICIES, list=True)
    if screen.wants_document:
        screen.document(answer.checked(VaultResponse))
        return
    keys = (answer.decode(VaultResponse).data or {}).get("keys")
    for name in keys if isinstance(keys, list) else ():
        screen.line(str(name))


@click.command()
@click.argument("name")
@with_output
@with_vault_client
def read(client: ApiClient, screen: Screen, name: str) -> None:
    """Print the text of the policy NAME.

    Example: steward policy read readers
    """
    answer = client.read(f"{_POLICIES}/{segment(name)}")
    if screen.wants_document:
        screen.document(answer.checked(VaultResponse))
        return
    screen.value(str((answer.decode(VaultResponse).data or {}).get("policy", "")).rstrip("\n"))


@click.command()
@click.argument("name")
@click.argument("file")
@with_output
@with_vault_client
def write(client: ApiClient, screen: Screen, name: str, file: str) -> None:
    """Create or change the policy NAME from FILE (-: standard input).

    Example: steward policy write readers readers.hcl
    """
    answer = client.send("POST", f"{_POLICIES}/{segment(name)}", {"policy": read_text(file)})
    if answer.body:
        for warning in answer.decode(VaultResponse).warnings or ():
            screen.warn(f"warning: {warning}")
    screen.report(f"policy {name} was written")


@click.command()
@click.argument("name")
@with_output
@with_vault_client
def delete(client: ApiClient, screen: Screen, name: str) -> None:
    """Delete the policy NAME.

    Example: steward policy delete readers
    """
    warnings = client.act("DELETE", f"{_POLICIES}/{segment(name)}")
    screen.report_deletion(f"policy {name} was deleted", warnings)


@click.command()
@click.argument("file")
def fmt(file: str) -> None:
    """Format the policy in FILE in place; with -, from standard input to standard output.

    Example: steward policy fmt readers.hcl
    """
    text = read_text(file)
    if file == "-":
        click.echo(formatted(text), nl=False)
        return
    try:
        Path(file).write_text(formatted(text))
    except OSError as error:
        raise Invalid(f"cannot write {file}: {error.strerror}") from None


@click.command()
@click.argument("identifier", metavar="TOKEN-OR-ACCESSOR")
@click.argument("method")
@click.argument("path")
@with_output
@with_vault_client
def explain(client: ApiClient, screen: Screen, identifier: str, method: str, path: str) -> int:
    """Show which rule decides whether a token (-: prompt) may request METHOD PATH.

    Exit status 2: the request would be rejected.

    Example: steward policy explain 2f0d1c3a GET /v1/jobs
    """
    secret = prompt_secret("Token") if identifier == "-" else resolve.accessor(client, identifier)
    body = {"Token": secret, "Method": method, "Path": path}
    answer = client.send("POST", "/v1/acl/explain", body)
    decision = answer.decode(PolicyDecisionView)
    if screen.wants_document:
        screen.document(answer.body)
    else:
        screen.facts(
            [
                ("Allowed", "yes" if decision.allowed else "no"),
                ("Needs", decision.needs),
                ("Rule", decision.rule),
                ("Policies", ", ".join(decision.policies)),
                ("Gives", ", ".join(decision.capabilities)),
                ("Because", decision.reason),
            ]
        )
    return 0 if decision.allowed else EXIT_REFUSED
