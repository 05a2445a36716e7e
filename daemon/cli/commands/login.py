"""`login` and `auth explain`: log in with a cloud machine's identity, or test a login."""

import os
import re
import sys
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from daemon.cli.core.cloud_metadata import MetadataClient, usual
from daemon.cli.core.files import reason_of
from daemon.cli.core.formatting import format_duration
from daemon.cli.core.http_client import ApiClient, ClientResponse
from daemon.cli.core.options import (
    Command,
    variables,
    with_anonymous_client,
    with_output,
    with_vault_client,
)
from daemon.cli.core.output import Screen
from daemon.cli.core.token_source import store_token, stored_at
from storage.errors import Invalid
from storage.records.base import SECOND

_RESOURCE = "https://management.azure.com/"  # the resource of tokens unless an option names another
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


class LoginArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a login."""

    role: str
    path: str
    vm: str
    vmss: str
    resource_id: str
    jwt_file: str
    resource: str
    identity: str
    metadata_url: str

    def request(self, client: ApiClient) -> dict[str, str]:
        """Return the request body of a login. Raises `MetadataUnavailable` or `Invalid`."""
        metadata = usual(self.metadata_url, "" if self.metadata_url else _of_daemon(client))
        jwt = (
            _read(self.jwt_file) if self.jwt_file else metadata.token(self.resource, self.identity)
        )
        body = {"role": self.role, "jwt": jwt, **self._machine_location(metadata)}
        return {name: value for name, value in body.items() if value}

    def _machine_location(self, metadata: MetadataClient) -> Mapping[str, str]:
        """Return the location of the machine, or the resource that the token was issued for."""
        if self.resource_id:
            match = _ID.fullmatch(self.resource_id)
            if match is None:
                raise Invalid(
                    f"--resource-id {self.resource_id!r} does not begin with /subscriptions/ID/"
                )
            return {
                "resource_id": self.resource_id,
                "subscription_id": match[1],
                "resource_group_name": match[2],
            }
        if self.jwt_file and not (self.vm or self.vmss):
            return {}
        machine = metadata.location()
        vmss = self.vmss or ("" if self.vm else machine.vm_scale_set_name)
        return {
            "subscription_id": machine.subscription_id,
            "resource_group_name": machine.resource_group_name,
            "vmss_name": vmss,
            "vm_name": "" if vmss else self.vm or machine.name,
        }


_OPTIONS = (
    click.option("--role", required=True, help="Role to log in with."),
    click.option(
        "--path", default="cloudid", help="Mount path of the login method [default: cloudid]."
    ),
    click.option("--vm", default="", metavar="NAME", help="Name of this machine."),
    click.option("--vmss", default="", metavar="NAME", help="Name of the machine's scale set."),
    click.option(
        "--resource-id", default="", metavar="ID", help="Resource ID, instead of a machine."
    ),
    click.option(
        "--jwt-file",
        default="",
        metavar="FILE",
        help="File with the identity token; - reads standard input.",
    ),
    click.option("--resource", default=_RESOURCE, help="Audience of the token [default: …azure…]."),
    click.option(
        "--identity", default="", help="Client ID or resource ID of one of several identities."
    ),
    click.option(
        "--metadata-url",
        envvar=variables("CLOUD_METADATA_URL"),
        default="",
        help="Metadata service [env: STEWARD_CLOUD_METADATA_URL].",
    ),
)


def _with_login_options(command: Command) -> Command:
    """Add the options of a login to a command, and pass them as `login_arguments`."""

    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        fields = {field: options.pop(field) for field in LoginArguments.__struct_fields__}
        arguments = msgspec.convert(fields, LoginArguments)
        return command(*args, login_arguments=arguments, **options)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


@click.command()
@click.option("--no-store", is_flag=True, help="Print the token instead of storing it.")
@_with_login_options
@with_output
@with_anonymous_client
def login(
    client: ApiClient, screen: Screen, login_arguments: LoginArguments, *, no_store: bool
) -> None:
    """Log in with the cloud identity of this host, and store the token.

    Example: steward login --role web
    """
    answer = _send_login(client, login_arguments, "login")
    if screen.wants_document:
        screen.document(answer.checked(_LoggedIn))
        return
    done = answer.decode(_LoggedIn)
    for warning in done.warnings or ():
        screen.warn(warning)
    if no_store:
        screen.value(done.auth.client_token)
        return
    file = store_token(done.auth.client_token, os.environ)
    screen.facts(
        [
            ("Accessor", done.auth.accessor),
            ("Policies", ", ".join(done.auth.policies)),
            ("Expires in", format_duration(done.auth.lease_duration * SECOND)),
            ("Stored in", str(file)),
        ]
    )


@click.command()
@_with_login_options
@with_output
@with_vault_client
def explain(client: ApiClient, screen: Screen, login_arguments: LoginArguments) -> int:
    """Show which rules a login meets, and which rule rejects it. No token is issued.

    Exit status 1: the login would be rejected.

    Example: steward auth explain --role web --jwt-file token.jwt
    """
    answer = _send_login(client, login_arguments, "explain")
    explained = answer.decode(_Explanation).data
    if screen.wants_document:
        screen.document(answer.body)
        return 0 if explained.accepted else 1
    rows = [
        (rule.rule, "no" if rule.refusal else "yes", rule.looked_at, rule.seen)
        for rule in explained.rules
    ]
    screen.table(("Rule", "Holds", "Looked at", "Seen"), rows)
    for rule in explained.rules:
        if rule.refusal:
            screen.line(f"\n{rule.rule}: {rule.refusal}")
    return 0 if explained.accepted else 1


@click.command()
@with_output
@with_vault_client
def logout(client: ApiClient, screen: Screen) -> None:
    """Revoke the stored token, and delete it.

    Example: steward logout
    """
    client.act("POST", "/v1/auth/token/revoke-self", {})
    is_stored = stored_at(os.environ).exists()
    store_token("", os.environ)
    screen.report(
        "the token was revoked and deleted"
        if is_stored
        else "the token was revoked; no token was stored"
    )


def _send_login(client: ApiClient, login_arguments: LoginArguments, action: str) -> ClientResponse:
    body = login_arguments.request(client)
    return client.send("POST", f"/v1/auth/{login_arguments.path.strip('/')}/{action}", body)


def _of_daemon(client: ApiClient) -> str:
    """Return the URL of a development daemon's fake cloud; empty if it has none."""
    if urlsplit(client.connection.address).hostname not in _LOCAL:
        return ""
    return client.fetch("/v1/agent/health", _Health).dev_cloud.address


def _read(file: str) -> str:
    try:
        return (sys.stdin.read() if file == "-" else Path(file).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the token in {file}: {reason_of(error)}") from error
