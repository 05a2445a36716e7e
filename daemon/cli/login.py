"""`login` and `auth explain`: what a machine of a cloud shows to be let in, and why it is not."""

import os
import re
import sys
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from daemon.cli.client import Answer, Client
from daemon.cli.metadata import Metadata, usual
from daemon.cli.options import Command, connected_openly, connected_to_secrets, shown, variables
from daemon.cli.output import Screen
from daemon.cli.secret import keep_token
from daemon.cli.text import span
from storage.errors import Invalid
from storage.records.base import SECOND

_RESOURCE = "https://management.azure.com/"  # for which tokens are asked unless told otherwise
_LOCAL = ("127.0.0.1", "localhost", "::1")
_ID = re.compile(r"/subscriptions/([^/]+)/resourcegroups/([^/]+)/.+", re.IGNORECASE)


class _Auth(msgspec.Struct, frozen=True):
    client_token: str
    accessor: str
    policies: list[str]
    lease_duration: int
    renewable: bool


class _DevCloud(msgspec.Struct, frozen=True):
    address: str = ""


class _Health(msgspec.Struct, frozen=True):
    dev_cloud: _DevCloud = _DevCloud()


class _LoggedIn(msgspec.Struct, frozen=True):
    auth: _Auth
    warnings: list[str] | None = None


class _Verdict(msgspec.Struct, frozen=True):
    rule: str
    looked_at: str
    seen: str
    refusal: str


class _Explained(msgspec.Struct, frozen=True):
    accepted: bool
    rules: list[_Verdict]


class _Explanation(msgspec.Struct, frozen=True):
    data: _Explained


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody who logs in has said on the command line."""

    role: str
    path: str
    vm: str
    vmss: str
    resource_id: str
    jwt_file: str
    resource: str
    identity: str
    metadata_url: str

    def request(self, client: Client) -> dict[str, str]:
        """Return the body of a login. Raises `NoMetadata` or `Invalid`."""
        metadata = usual(self.metadata_url, "" if self.metadata_url else _of_daemon(client))
        jwt = (
            _read(self.jwt_file) if self.jwt_file else metadata.token(self.resource, self.identity)
        )
        body = {"role": self.role, "jwt": jwt, **self._place(metadata)}
        return {name: value for name, value in body.items() if value}

    def _place(self, metadata: Metadata) -> Mapping[str, str]:
        """Return where the machine is, or what else the token was issued for."""
        if self.resource_id:
            found = _ID.fullmatch(self.resource_id)
            if found is None:
                raise Invalid(f"--resource-id {self.resource_id!r} is not /subscriptions/…")
            return {
                "resource_id": self.resource_id,
                "subscription_id": found[1],
                "resource_group_name": found[2],
            }
        if self.jwt_file and not (self.vm or self.vmss):
            return {}
        machine = metadata.machine()
        vmss = self.vmss or ("" if self.vm else machine.vm_scale_set_name)
        return {
            "subscription_id": machine.subscription_id,
            "resource_group_name": machine.resource_group_name,
            "vmss_name": vmss,
            "vm_name": "" if vmss else self.vm or machine.name,
        }


_OPTIONS = (
    click.option("--role", required=True, help="Role to log in with."),
    click.option("--path", default="cloudid", help="Where the login method is [default: cloudid]."),
    click.option("--vm", default="", metavar="NAME", help="Name of this machine."),
    click.option("--vmss", default="", metavar="NAME", help="Name of its scale set."),
    click.option("--resource-id", default="", metavar="ID", help="Resource that it is instead."),
    click.option("--jwt-file", default="", metavar="FILE", help="Token to show (-: stdin)."),
    click.option("--resource", default=_RESOURCE, help="For whom the token is [default: …azure…]."),
    click.option("--identity", default="", help="Client or resource id, if there are several."),
    click.option(
        "--metadata-url",
        envvar=variables("CLOUD_METADATA_URL"),
        default="",
        help="Metadata service [env: STEWARD_CLOUD_METADATA_URL].",
    ),
)


def _wanting(command: Command) -> Command:
    """Give a command the options of a login, and `wanted` instead of them."""

    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        fields = {field: options.pop(field) for field in Wanted.__struct_fields__}
        return command(*args, wanted=msgspec.convert(fields, Wanted), **options)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


@click.command()
@click.option("--no-store", is_flag=True, help="Print the token instead of keeping it.")
@_wanting
@shown
@connected_openly
def login(client: Client, screen: Screen, wanted: Wanted, *, no_store: bool) -> None:
    """Log in as this machine, with the identity that its cloud gave it, and keep the token.

    Example: steward login --role web
    """
    answer = _ask(client, wanted, "login")
    if screen.wants_document:
        screen.document(answer.body)
        return
    done = answer.decode(_LoggedIn)
    for warning in done.warnings or ():
        screen.warn(warning)
    if no_store:
        screen.line(done.auth.client_token)
        return
    file = keep_token(done.auth.client_token, os.environ)
    screen.facts(
        [
            ("Accessor", done.auth.accessor),
            ("Policies", ", ".join(done.auth.policies)),
            ("Ends in", span(done.auth.lease_duration * SECOND)),
            ("Kept in", str(file)),
        ]
    )


@click.command()
@_wanting
@shown
@connected_to_secrets
def explain(client: Client, screen: Screen, wanted: Wanted) -> int:
    """Say which rules a login would meet, and which one refuses it. Nobody is let in.

    Exit status 1: the login would be refused.

    Example: steward auth explain --role web --jwt-file token.jwt
    """
    answer = _ask(client, wanted, "explain")
    explained = answer.decode(_Explanation).data
    if screen.wants_document:
        screen.document(answer.body)
        return 0 if explained.accepted else 1
    rows = [
        (one.rule, "no" if one.refusal else "yes", one.looked_at, one.seen)
        for one in explained.rules
    ]
    screen.table(("Rule", "Holds", "Looked at", "Seen"), rows)
    for one in explained.rules:
        if one.refusal:
            screen.line(f"\n{one.rule}: {one.refusal}")
    return 0 if explained.accepted else 1


@click.command()
@shown
@connected_to_secrets
def logout(client: Client, screen: Screen) -> None:
    """End the token that is kept for the next commands, and forget it.

    Example: steward logout
    """
    client.send("POST", "/v1/auth/token/revoke-self", {})
    keep_token("", os.environ)
    screen.told("the token has ended and is forgotten")


def _ask(client: Client, wanted: Wanted, what: str) -> Answer:
    body = wanted.request(client)
    return client.send("POST", f"/v1/auth/{wanted.path.strip('/')}/{what}", body)


def _of_daemon(client: Client) -> str:
    """Return where a development daemon of this machine has its own small cloud; empty: it has none."""
    if urlsplit(client.connection.address).hostname not in _LOCAL:
        return ""
    return client.fetch("/v1/agent/health", _Health).dev_cloud.address


def _read(file: str) -> str:
    try:
        return (sys.stdin.read() if file == "-" else Path(file).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the token in {file}: {error}") from error
