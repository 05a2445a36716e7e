"""`policy …`: policies of the secrets side, and why a request is allowed or refused."""

from pathlib import Path

import click

from daemon.cli import resolve
from daemon.cli.acl import read_text
from daemon.cli.client import Client, segment
from daemon.cli.envelope import Envelope
from daemon.cli.options import connected_to_secrets, shown
from daemon.cli.output import Screen
from daemon.cli.policyformat import formatted
from daemon.cli.secret import ask
from storage.errors import Invalid
from storage.records.base import Record

_POLICIES = "/v1/sys/policies/acl"
EXIT_REFUSED = 2


class Explanation(Record, frozen=True, kw_only=True):
    """Whether a request is allowed, and why."""

    allowed: bool
    needs: str
    rule: str = ""
    policies: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    reason: str = ""


@click.command()
@shown
@connected_to_secrets
def index(client: Client, screen: Screen) -> None:
    """List the policies.

    Example: steward policy list
    """
    answer = client.read(_POLICIES, list=True)
    if screen.wants_document:
        screen.document(answer.body)
        return
    keys = (answer.decode(Envelope).data or {}).get("keys")
    for name in keys if isinstance(keys, list) else ():
        screen.line(str(name))


@click.command()
@click.argument("name")
@shown
@connected_to_secrets
def read(client: Client, screen: Screen, name: str) -> None:
    """Print the text of the policy NAME.

    Example: steward policy read readers
    """
    answer = client.read(f"{_POLICIES}/{segment(name)}")
    if screen.wants_document:
        screen.document(answer.body)
        return
    screen.line(str((answer.decode(Envelope).data or {}).get("policy", "")).rstrip("\n"))


@click.command()
@click.argument("name")
@click.argument("file")
@shown
@connected_to_secrets
def write(client: Client, screen: Screen, name: str, file: str) -> None:
    """Make the policy NAME, or change it, from FILE (-: standard input).

    Example: steward policy write readers readers.hcl
    """
    answer = client.send("POST", f"{_POLICIES}/{segment(name)}", {"policy": read_text(file)})
    if answer.body:
        for warning in answer.decode(Envelope).warnings or ():
            screen.warn(f"warning: {warning}")
    screen.told(f"policy {name} is written")


@click.command()
@click.argument("name")
@shown
@connected_to_secrets
def delete(client: Client, screen: Screen, name: str) -> None:
    """Remove the policy NAME.

    Example: steward policy delete readers
    """
    client.send("DELETE", f"{_POLICIES}/{segment(name)}")
    screen.told(f"policy {name} is gone")


@click.command()
@click.argument("file")
def fmt(file: str) -> None:
    """Indent the policy in FILE evenly, in place; with -, from standard input to standard output.

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
@click.argument("whose", metavar="TOKEN-OR-ACCESSOR")
@click.argument("method")
@click.argument("path")
@shown
@connected_to_secrets
def explain(client: Client, screen: Screen, whose: str, method: str, path: str) -> int:
    """Tell which rule decides whether the holder of a token (-: asked for) may ask METHOD PATH.

    Exit status 2: it would be refused.

    Example: steward policy explain 2f0d1c3a GET /v1/jobs
    """
    secret = ask("Token") if whose == "-" else resolve.accessor(client, whose)
    body = {"Token": secret, "Method": method, "Path": path}
    answer = client.send("POST", "/v1/acl/explain", body)
    found = answer.decode(Explanation)
    if screen.wants_document:
        screen.document(answer.body)
    else:
        screen.facts(
            [
                ("Allowed", "yes" if found.allowed else "no"),
                ("Needs", found.needs),
                ("Rule", found.rule),
                ("Policies", ", ".join(found.policies)),
                ("Gives", ", ".join(found.capabilities)),
                ("Because", found.reason),
            ]
        )
    return 0 if found.allowed else EXIT_REFUSED
