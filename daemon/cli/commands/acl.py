"""`acl …`: the first token, and policies, tokens and roles of the jobs API."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from daemon.cli.core import resolve
from daemon.cli.core.files import reason_of
from daemon.cli.core.formatting import format_api_time
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid
from storage.records.acl import AclRole
from storage.records.acl_views import PolicyDetail, PolicyStub, TokenDetail, TokenStub

_POLICIES = click.option("--policy", "policies", multiple=True, help="Policy; repeatable.")
_ROLES = click.option("--role-name", "roles", multiple=True, help="Role; repeatable.")
_ROLE_IDS = click.option("--role-id", "role_ids", multiple=True, help="Role by ID; repeatable.")
_NAME = click.option("--name", default="", help="Display name.")
_DESCRIPTION = click.option("--description", default="", help="Description.")


def read_text(source: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises `Invalid`."""
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {source}: {reason_of(error)}") from None


# --- the first token ----------------------------------------------------------------------------


@click.command()
@click.argument("file", default="", metavar="[FILE]")
@with_output
@with_client
def bootstrap(client: ApiClient, screen: Screen, file: str) -> None:
    """Create the first management token; FILE (-: standard input) holds its secret, a UUID.

    Example: steward acl bootstrap first-secret.txt
    """
    body = {"BootstrapSecret": read_text(file).strip()} if file else None
    _show_token(screen, client.send("POST", "/v1/acl/bootstrap", body))


# --- policies -----------------------------------------------------------------------------------


@click.command()
@click.argument("name")
@click.argument("file")
@_DESCRIPTION
@with_output
@with_client
def policy_apply(
    client: ApiClient, screen: Screen, name: str, file: str, *, description: str
) -> None:
    """Create or change the policy NAME from the rules in FILE (-: standard input).

    Example: steward acl policy apply deploy deploy.hcl
    """
    body = {"Name": name, "Description": description, "Rules": read_text(file)}
    warnings = client.act("POST", f"/v1/acl/policy/{segment(name)}", body)
    screen.report_change(f"policy {name} was written", warnings)


@click.command()
@with_output
@with_client
def policy_list(client: ApiClient, screen: Screen) -> None:
    """List the policies.

    Example: steward acl policy list
    """
    answer = client.read("/v1/acl/policies")
    if screen.wants_document:
        screen.document(answer.checked(list[PolicyStub]))
        return
    rows = [[policy.name, policy.description] for policy in answer.decode(list[PolicyStub])]
    screen.table(["Name", "Description"], rows)


@click.command()
@click.argument("name")
@with_output
@with_client
def policy_info(client: ApiClient, screen: Screen, name: str) -> None:
    """Show the policy NAME.

    Example: steward acl policy info deploy
    """
    answer = client.read(f"/v1/acl/policy/{segment(name)}")
    if screen.wants_document:
        screen.document(answer.checked(PolicyDetail))
        return
    policy = answer.decode(PolicyDetail)
    screen.facts([("Name", policy.name), ("Description", policy.description)])
    screen.title("Rules")
    screen.value(policy.rules.rstrip("\n"))


@click.command()
@click.argument("name")
@with_output
@with_client
def policy_delete(client: ApiClient, screen: Screen, name: str) -> None:
    """Delete the policy NAME.

    Example: steward acl policy delete deploy
    """
    warnings = client.act("DELETE", f"/v1/acl/policy/{segment(name)}")
    screen.report_deletion(f"policy {name} was deleted", warnings)


# --- tokens -------------------------------------------------------------------------------------


@click.command()
@_NAME
@click.option("--type", "kind", default="client", help="client or management.")
@click.option("--global", "is_global", is_flag=True, help="Valid in all regions.")
@click.option("--ttl", default="", metavar="SPAN", help="TTL, such as 1h30m.")
@_POLICIES
@_ROLES
@_ROLE_IDS
@with_output
@with_client
def token_create(  # the options are the fields of a token
    client: ApiClient,
    screen: Screen,
    *,
    name: str,
    kind: str,
    is_global: bool,
    ttl: str,
    policies: Sequence[str],
    roles: Sequence[str],
    role_ids: Sequence[str],
) -> None:
    """Create a token; its secret is shown only once.

    Example: steward acl token create -name ci -policy deploy -ttl 8h
    """
    body = {"Name": name, "Type": kind, "Global": is_global, "Policies": list(policies)}
    links = [{"Name": role} for role in roles] + [{"ID": role_id} for role_id in role_ids]
    answer = client.send("POST", "/v1/acl/token", {**body, "Roles": links, "ExpirationTTL": ttl})
    _show_token(screen, answer)


@click.command()
@with_output
@with_client
def token_list(client: ApiClient, screen: Screen) -> None:
    """List the tokens of both APIs.

    Example: steward acl token list
    """
    answer = client.read("/v1/acl/tokens")
    if screen.wants_document:
        screen.document(answer.checked(list[TokenStub]))
        return
    screen.table(
        ["Accessor", "Name", "Type", "Policies", "Expires"],
        [
            [
                token.accessor_id,
                token.name,
                token.type,
                ", ".join(token.policies or ()),
                format_api_time(token.expiration_time),
            ]
            for token in answer.decode(list[TokenStub])
        ],
    )


@click.command()
@click.argument("accessor")
@with_output
@with_client
def token_info(client: ApiClient, screen: Screen, accessor: str) -> None:
    """Show the token with ACCESSOR.

    Example: steward acl token info 2f0d1c3a
    """
    accessor = resolve.accessor(client, accessor)
    _show_token(screen, client.read(f"/v1/acl/token/{segment(accessor)}"))


@click.command()
@with_output
@with_client
def token_self(client: ApiClient, screen: Screen) -> None:
    """Show the token in use.

    Example: steward acl token self -t .Policies
    """
    _show_token(screen, client.read("/v1/acl/token/self"))


@click.command()
@click.argument("accessor")
@_NAME
@_POLICIES
@_ROLES
@_ROLE_IDS
@with_output
@with_client
def token_update(
    client: ApiClient,
    screen: Screen,
    accessor: str,
    *,
    name: str,
    policies: Sequence[str],
    roles: Sequence[str],
    role_ids: Sequence[str],
) -> None:
    """Change the token with ACCESSOR; fields without an option stay as they are.

    Example: steward acl token update 2f0d1c3a -name ci-of-web
    """
    accessor = resolve.accessor(client, accessor)
    path = f"/v1/acl/token/{segment(accessor)}"
    before = client.fetch(path, TokenDetail)
    links = [{"Name": role} for role in roles] + [{"ID": role_id} for role_id in role_ids]
    role_links = [{"ID": role.id} for role in before.roles or ()]
    body = {
        "AccessorID": accessor,
        "Name": name or before.name,
        "Type": before.type,
        "Global": before.global_,
        "Policies": list(policies) or list(before.policies or ()),
        "Roles": links or role_links,
    }
    _show_token(screen, client.send("POST", path, body))


@click.command()
@click.argument("accessor")
@with_output
@with_client
def token_delete(client: ApiClient, screen: Screen, accessor: str) -> None:
    """Revoke the token with ACCESSOR.

    Example: steward acl token delete 2f0d1c3a
    """
    accessor = resolve.accessor(client, accessor)
    client.act("DELETE", f"/v1/acl/token/{segment(accessor)}")
    screen.report(f"token {accessor} was revoked")


def _show_token(screen: Screen, answer: ClientResponse) -> None:
    if screen.wants_document:
        screen.document(answer.checked(TokenDetail))
        return
    token = answer.decode(TokenDetail)
    screen.facts(
        [
            ("Accessor ID", token.accessor_id),
            ("Secret ID", token.secret_id or "not shown again"),
            ("Name", token.name),
            ("Type", token.type),
            ("Global", str(token.global_).lower()),
            ("Create Time", format_api_time(token.create_time)),
            ("Expiry Time", format_api_time(token.expiration_time)),
            ("Policies", ", ".join(token.policies or ())),
            ("Roles", ", ".join(role.name for role in token.roles or ())),
        ]
    )


# --- roles --------------------------------------------------------------------------------------


@click.command()
@_NAME
@_DESCRIPTION
@_POLICIES
@with_output
@with_client
def role_create(
    client: ApiClient, screen: Screen, *, name: str, description: str, policies: Sequence[str]
) -> None:
    """Create a role: a name for a set of policies.

    Example: steward acl role create -name operators -policy deploy
    """
    links = [{"Name": policy} for policy in policies]
    body = {"Name": name, "Description": description, "Policies": links}
    _show_role(screen, client.send("POST", "/v1/acl/role", body))


@click.command()
@click.argument("role_id", metavar="ROLE")
@_NAME
@_DESCRIPTION
@_POLICIES
@with_output
@with_client
def role_update(
    client: ApiClient,
    screen: Screen,
    role_id: str,
    *,
    name: str,
    description: str,
    policies: Sequence[str],
) -> None:
    """Change the role with the ID or name ROLE; fields without an option stay as they are.

    Example: steward acl role update operators -policy deploy
    """
    before = _find_role(client, role_id).decode(AclRole)
    body = {
        "ID": before.id,
        "Name": name or before.name,
        "Description": description or before.description,
        "Policies": [{"Name": policy} for policy in policies] or before.policies,
    }
    _show_role(screen, client.send("POST", f"/v1/acl/role/{segment(before.id)}", body))


@click.command()
@with_output
@with_client
def role_list(client: ApiClient, screen: Screen) -> None:
    """List the roles.

    Example: steward acl role list
    """
    answer = client.read("/v1/acl/roles")
    if screen.wants_document:
        screen.document(answer.checked(list[AclRole]))
        return
    rows = [
        [role.id, role.name, ", ".join(link.name for link in role.policies or ()), role.description]
        for role in answer.decode(list[AclRole])
    ]
    screen.table(["ID", "Name", "Policies", "Description"], rows)


@click.command()
@click.argument("role_id", metavar="ROLE")
@with_output
@with_client
def role_info(client: ApiClient, screen: Screen, role_id: str) -> None:
    """Show the role with the ID or name ROLE.

    Example: steward acl role info operators
    """
    _show_role(screen, _find_role(client, role_id))


@click.command()
@click.argument("role_id", metavar="ROLE")
@with_output
@with_client
def role_delete(client: ApiClient, screen: Screen, role_id: str) -> None:
    """Delete the role with the ID or name ROLE.

    Example: steward acl role delete operators
    """
    role = _find_role(client, role_id).decode(AclRole)
    client.act("DELETE", f"/v1/acl/role/{segment(role.id)}")
    screen.report(f"role {role.name} was deleted")


_ID_LENGTH = 36


def _find_role(client: ApiClient, role_id: str) -> ClientResponse:
    by_id = len(role_id) == _ID_LENGTH and role_id.count("-") == 4
    below = segment(role_id) if by_id else f"name/{segment(role_id)}"
    return client.read(f"/v1/acl/role/{below}")


def _show_role(screen: Screen, answer: ClientResponse) -> None:
    if screen.wants_document:
        screen.document(answer.checked(AclRole))
        return
    role = answer.decode(AclRole)
    screen.facts(
        [
            ("ID", role.id),
            ("Name", role.name),
            ("Description", role.description),
            ("Policies", ", ".join(link.name for link in role.policies or ())),
        ]
    )
