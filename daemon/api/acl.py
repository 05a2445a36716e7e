"""Tokens, policies and roles of the jobs API."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from daemon.acl import bootstrap as first
from daemon.acl import policy_store
from daemon.acl.caller_cache import policy_names
from daemon.acl.explain import AccessDecision, explain
from daemon.acl.nomad_tokens import (
    TokenRequest,
    apply_token_update,
    is_upload,
    new_token,
    token_digest,
)
from daemon.acl.tokens import IssuedToken
from daemon.api.paging import Listing, query_factory, show
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import mounts, policies, secrets, tokens
from storage.read_pool import ReadSnapshot
from storage.records import acl_views as views
from storage.records.acl import DEFAULT, AclRole, JobACL, Policy, PolicyLink, Token
from storage.records.base import Record
from storage.records.codec import encode
from storage.store import Store
from storage.writer import Transaction

T = TypeVar("T")

_OFF = "ACL support disabled"


class BootstrapRequest(Record, frozen=True, kw_only=True):
    """The body of the request for the first token."""

    bootstrap_secret: str = ""


class PolicyRequest(Record, frozen=True, kw_only=True):
    """The writable fields of a policy."""

    name: str = ""
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None


class RoleRequest(Record, frozen=True, kw_only=True):
    """The writable fields of a role."""

    id: str = ""
    name: str = ""
    description: str = ""
    policies: list[PolicyLink] | None = None


def check_acls_on(request: Request) -> None:
    """Raise Nomad's error if ACLs are disabled."""
    if not request.parts.tokens.asks:
        raise Malformed(_OFF)


# --- the first token ----------------------------------------------------------------------------


async def bootstrap(request: Request) -> HandlerReply:
    """Create the first management token."""
    check_acls_on(request)
    parts = request.parts
    body = await request.decoded(BootstrapRequest) if request.body else BootstrapRequest()
    issued = await first.bootstrap(
        parts.store,
        parts.tokens,
        secret=body.bootstrap_secret or next(parts.ids),
        accessor=next(parts.ids),
        now=parts.clock.now(),
        reset_index=max(
            map(first.read_reset_index, (parts.config.store_dir, parts.config.data_dir))
        ),
    )
    return _written(issued.token, issued.secret, {})


# --- tokens -------------------------------------------------------------------------------------


def list_tokens(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the ACL tokens, including those that the Vault API issued.

    With `global`, list only the global tokens (true) or only the local tokens (false).
    """
    check_acls_on(request)
    query, expression = request.query, request.query.text("filter")
    is_global = query.flag("global") if "global" in query else None
    matches = compile_filter(expression, views.TokenStub) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(db: ReadSnapshot, token: Token) -> bool:
        if is_global is not None and token.is_global is not is_global:
            return False
        return matches is None or matches(msgspec.to_builtins(_stub(db, token)))

    listing = Listing[Token](
        rows=lambda db, start, reverse: tokens.page(db, to_page_request(start, reverse)),
        key=lambda token: (token.create_index, token.accessor),
        line=lambda db, token: encode(_stub(db, token)),
        wanted=wanted,
    )
    return show(listing, query, db, max(db.table_index("tokens"), 1))


def _stub(db: ReadSnapshot, token: Token) -> views.TokenStub:
    return views.token_stub(token, token_digest(token), policies.role_names(db, token.roles))


def read_self_token(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the token of the request."""
    token = request.caller.token
    return _shown(token, request.token, _role_names(db))


def read_token(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a token to its owner, or to a caller with a management token."""
    check_acls_on(request)
    is_own = request["accessor"] == request.caller.token.accessor
    if not is_own and not request.caller.grant.everything:
        raise Denied
    stored = tokens.find(db, request["accessor"])
    if stored is None or stored.has_ended(request.parts.clock.now()):
        raise NotFound("ACL token not found", index=max(db.table_index("tokens"), 1))
    secret = request.token if is_own else _stored_secret(request, db, stored)
    return _shown(stored, secret, _role_names(db))


def _secret_place(accessor: str) -> str:
    return f"{tokens.SECRETS}{accessor}"


def _stored_secret(request: Request, db: ReadSnapshot, token: Token) -> str:
    """Return the stored secret of a token.

    Return an empty string if secrets may not be shown or this secret is not stored.
    """
    if not request.parts.config.keep_token_secrets:
        return ""
    path = _secret_place(token.accessor)
    sealed = secrets.find(db, path)
    return request.parts.seal.unseal(sealed, path).decode() if sealed else ""


async def create_token(request: Request) -> HandlerReply:
    """Create a token, or change the token that the body names."""
    return await _put_token(request, await request.decoded(TokenRequest))


async def update_token(request: Request) -> HandlerReply:
    """Change the token in the path."""
    body = await request.decoded(TokenRequest)
    if body.accessor_id != request["accessor"]:
        raise Malformed("ACL token accessor does not match request path")
    return await _put_token(request, body)


async def _put_token(request: Request, body: TokenRequest) -> HandlerReply:
    check_acls_on(request)
    parts = request.parts
    now, accessor, secret = parts.clock.now(), next(parts.ids), next(parts.ids)
    if body.accessor_id:
        secret = request.token if body.accessor_id == request.caller.token.accessor else ""

    def write(tx: Transaction) -> tuple[Token, str, dict[str, str]]:
        is_new = not body.accessor_id
        if not is_new and not is_upload(tx, body):
            return tokens.update(tx, apply_token_update(tx, body, now)), secret, _role_names(tx)
        its_own, its_secret = (accessor, secret) if is_new else (body.accessor_id, body.secret_id)
        token = new_token(tx, body, accessor=its_own, now=now)
        if parts.config.keep_token_secrets:
            path = _secret_place(its_own)
            secrets.put(tx, path, parts.seal.seal(its_secret.encode(), path))
        return parts.tokens.add(tx, token, its_secret), its_secret, _role_names(tx)

    token, secret, names = await parts.store.write(write)
    if not secret:
        secret = parts.store.read(lambda db: _stored_secret(request, db, token))
    return _written(token, secret, names)


async def delete_token(request: Request) -> HandlerReply:
    """Revoke a token."""
    check_acls_on(request)
    accessor = request["accessor"]

    def write(tx: Transaction) -> int:
        if not tokens.remove(tx, accessor):
            raise Malformed(f"Cannot delete nonexistent tokens: {accessor}")
        return tx.index

    return HandlerReply(index=await request.parts.store.write(write))


def _role_names(db: ReadSnapshot) -> dict[str, str]:
    return {role.id: role.name for role in policies.list_roles(db)}


def _whole(token: Token, secret: str, names: dict[str, str]) -> views.TokenDetail:
    return views.whole_token(views.token_stub(token, token_digest(token), names), token, secret)


def _shown(token: Token, secret: str, names: dict[str, str]) -> HandlerReply:
    return reply.read_reply(_whole(token, secret, names), token.modify_index)


def _written(token: Token, secret: str, names: dict[str, str]) -> HandlerReply:
    return HandlerReply(body=_whole(token, secret, names), index=token.modify_index)


def issued_reply(store: Store, issued: IssuedToken) -> HandlerReply:
    """Return the reply to a request that issued a token: its fields and its secret."""
    return _written(issued.token, issued.secret, store.read(_role_names))


def token_response(store: Store, issued: IssuedToken) -> HandlerReply:
    """Return a reply whose field `Token` holds an issued token and its secret."""
    names = store.read(_role_names)
    document = _whole(issued.token, issued.secret, names)
    return HandlerReply(body={"Token": document}, index=issued.token.modify_index)


# --- policies -----------------------------------------------------------------------------------


def _own_policies(request: Request, db: ReadSnapshot) -> Callable[[str], bool]:
    """Return a function that tests whether the caller may see the policy with a given name.

    With a management token, the caller may see all policies; otherwise, only its own.
    """
    if request.caller.grant.everything:
        return lambda _: True
    return set(policy_names(db, request.caller.token)).__contains__


def list_policies(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the policies that the caller may see."""
    check_acls_on(request)
    may_see = _own_policies(request, db)
    expression = request.query.text("filter")
    matches = compile_filter(expression, views.PolicyStub) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, policy: Policy) -> bool:
        if policy.name == DEFAULT or not may_see(policy.name):
            return False
        return matches is None or matches(msgspec.to_builtins(policy_store.policy_stub(policy)))

    listing = Listing[Policy](
        rows=lambda db, start, reverse: policies.page(db, to_page_request(start, reverse)),
        key=lambda policy: ("", policy.name),
        line=lambda _, policy: encode(policy_store.policy_stub(policy)),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index("policies"), 1))


def read_policy(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a policy."""
    check_acls_on(request)
    if not _own_policies(request, db)(request["name"]):
        raise Denied
    policy = policies.find(db, request["name"])
    if policy is None or policy.name == DEFAULT:
        raise NotFound("ACL policy not found", index=max(db.table_index("policies"), 1))
    return reply.read_reply(policy_store.policy_detail(policy), policy.modify_index)


async def put_policy(request: Request) -> HandlerReply:
    """Create or change a policy."""
    check_acls_on(request)
    body = await request.decoded(PolicyRequest)
    if body.name != request["name"]:
        raise Malformed("ACL policy name does not match request path")
    value = msgspec.convert(body, Policy, from_attributes=True)
    checked = await request.worked_out(len(body.rules), partial(policy_store.check_policy, value))
    policy = msgspec.structs.replace(checked, modified_at=request.parts.clock.now())
    return HandlerReply(index=await request.parts.store.write(partial(_put_policy, policy=policy)))


def _put_policy(tx: Transaction, policy: Policy) -> int:
    before = policies.find(tx, policy.name)
    kept = before is not None and before.cas_required  # this API cannot set this field
    policy_store.put_policy(tx, msgspec.structs.replace(policy, cas_required=kept))
    return tx.index


async def delete_policy(request: Request) -> HandlerReply:
    """Delete a policy, if it exists."""
    check_acls_on(request)
    name = request["name"]

    def write(tx: Transaction) -> tuple[int, bool]:
        existed = policies.remove(tx, name)
        return tx.index, existed

    index, existed = await request.parts.store.write(write)
    request.note_deletion("policy", name, existed=existed)
    return HandlerReply(index=index)


# --- explanations -------------------------------------------------------------------------------


class ExplainRequest(Record, frozen=True, kw_only=True):
    """The body of a request to explain an access decision."""

    token: str = ""  # secret or accessor; empty: an anonymous request
    policies: list[str] | None = None  # policies to check instead of those of a token
    method: str = "GET"
    path: str = ""


async def explain_request(request: Request) -> HandlerReply:
    """Explain which rule allows or denies a request with a given token, or with given policies."""
    body, parts = await request.decoded(ExplainRequest), request.parts
    if not body.path:
        raise Malformed("Path is missing: give the path of a request, such as /v1/jobs")
    if body.token and body.policies:
        raise Malformed("Token and Policies are both given: give only one of them")

    def find(db: ReadSnapshot) -> AccessDecision:
        right = parts.rights().of(
            body.method.upper(), body.path, lambda path: mounts.find(db, path) is not None
        )
        token = parts.tokens.find(db, body.token) or tokens.find(db, body.token)
        if body.token and token is None:
            raise NotFound("ACL token not found")
        if body.policies:
            token = _holder(db, body.policies)
        caller = parts.tokens.caller(db, token) if token else parts.tokens.anonymous_caller(db)
        return explain(caller, right)

    return HandlerReply(body=await parts.store.read_long(find))


def _holder(db: ReadSnapshot, names: Iterable[str]) -> Token:
    """Return an unsaved token that has the policies in `names`. Raises `NotFound`."""
    holder_policies = tuple(dict.fromkeys(names))
    if missing := [policy for policy in holder_policies if policies.find(db, policy) is None]:
        raise NotFound(f"ACL policy {missing[0]} not found")
    return Token(accessor="", policies=holder_policies, created_at=0)


# --- roles --------------------------------------------------------------------------------------


def list_roles(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the roles that the caller may see: its own, or all."""
    check_acls_on(request)
    expression = request.query.text("filter")
    matches = compile_filter(expression, AclRole) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, acl_role: AclRole) -> bool:
        if not _may_see_role(request, acl_role):
            return False
        return matches is None or matches(msgspec.to_builtins(acl_role))

    listing = Listing[AclRole](
        rows=lambda db, start, reverse: policies.role_page(db, to_page_request(start, reverse)),
        key=lambda role: ("", role.id),
        line=lambda _, role: encode(role),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index("acl_roles"), 1))


def _may_see_role(request: Request, role: AclRole) -> bool:
    return request.caller.grant.everything or role.id in request.caller.token.roles


def read_role(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a role."""
    return _role(request, db, policies.find_role(db, request["role_id"]))


def read_role_by_name(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the role with this name."""
    return _role(request, db, policies.role_named(db, request["name"]))


def _role(request: Request, db: ReadSnapshot, acl_role: AclRole | None) -> HandlerReply:
    check_acls_on(request)
    if not request.caller.grant.everything and (
        acl_role is None or not _may_see_role(request, acl_role)
    ):
        raise Denied
    if acl_role is None:
        raise NotFound("ACL role not found", index=max(db.table_index("acl_roles"), 1))
    return reply.read_reply(acl_role, acl_role.modify_index)


async def create_role(request: Request) -> HandlerReply:
    """Create a role, or change the role that the body names."""
    return await _put_role(request, await request.decoded(RoleRequest))


async def update_role(request: Request) -> HandlerReply:
    """Change the role in the path."""
    body = await request.decoded(RoleRequest)
    if body.id != request["role_id"]:
        raise Malformed("ACL role ID does not match request path")
    return await _put_role(request, body)


async def _put_role(request: Request, body: RoleRequest) -> HandlerReply:
    check_acls_on(request)
    fresh = next(request.parts.ids)

    def write(tx: Transaction) -> AclRole:
        before = policies.find_role(tx, body.id) if body.id else None
        if body.id and before is None:
            raise Malformed(f"cannot find role {body.id}")
        role = msgspec.convert(body, AclRole, from_attributes=True)
        role = msgspec.structs.replace(
            role, id=body.id or fresh, create_index=before.create_index if before else 0
        )
        return policies.put_role(tx, policy_store.check_role(tx, role))

    role = await request.parts.store.write(write)
    return HandlerReply(body=role, index=role.modify_index)


async def delete_role(request: Request) -> HandlerReply:
    """Delete a role."""
    check_acls_on(request)
    role_id = request["role_id"]

    def write(tx: Transaction) -> int:
        if not policies.remove_role(tx, role_id):
            raise NotFound("ACL role not found")
        return tx.index

    return HandlerReply(index=await request.parts.store.write(write))
