"""Tokens, policies and roles, as the jobs side's clients manage them."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from daemon.acl import bootstrap as first
from daemon.acl import named
from daemon.acl.clients import TokenRequest, changed_token, new_token, token_digest
from daemon.acl.explain import Explanation, explain
from daemon.acl.known import names_of
from daemon.acl.tokens import Issued
from daemon.api.paging import paginate
from daemon.jobspec.filter import only_wanted
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import mounts, policies, secrets, tokens
from storage.readers import Snapshot
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
    """What people write of a policy."""

    name: str = ""
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None


class RoleRequest(Record, frozen=True, kw_only=True):
    """What people write of a role."""

    id: str = ""
    name: str = ""
    description: str = ""
    policies: list[PolicyLink] | None = None


def _check_on(request: Request) -> None:
    """Raise the peer's error where nobody is asked for a token."""
    if not request.parts.tokens.asks:
        raise Malformed(_OFF)


# ---- the first token -------------------------------------------------------------------------


async def bootstrap(request: Request) -> Reply:
    """Make the first management token."""
    _check_on(request)
    parts = request.parts
    body = await request.decoded(BootstrapRequest) if request.body else BootstrapRequest()
    issued = await first.bootstrap(
        parts.store,
        parts.tokens,
        secret=body.bootstrap_secret or next(parts.ids),
        accessor=next(parts.ids),
        now=parts.clock.now(),
        reset_index=max(map(first.read_reset, (parts.config.store_dir, parts.config.data_dir))),
    )
    return _written(issued.token, issued.secret, {})


# ---- tokens ----------------------------------------------------------------------------------


def list_tokens(request: Request, db: Snapshot) -> Reply:
    """List the tokens of both sides; `global` leaves those of the other kind out."""
    _check_on(request)
    query = request.query
    names = _role_names(db)
    found = tokens.every(db, query.text("prefix"))
    if "global" in query:
        wanted = query.flag("global")
        found = [one for one in found if one.is_global is wanted]
    stubs = [views.token_stub(one, token_digest(one), names) for one in found]
    stubs = only_wanted(stubs, query.text("filter"), views.TokenStub)
    page = paginate(stubs, lambda one: (one.create_index, one.accessor_id), encode, query)
    index = max(db.table_index("tokens"), 1)
    return reply.read(page.body, index, next_token=page.next_token)


def own_token(request: Request, db: Snapshot) -> Reply:
    """Show the token that the request shows."""
    token = request.caller.token
    return _shown(token, request.token, _role_names(db))


def read_token(request: Request, db: Snapshot) -> Reply:
    """Show a token; its holder may, and whoever manages tokens."""
    _check_on(request)
    is_own = request["accessor"] == request.caller.token.accessor
    if not is_own and not request.caller.grant.everything:
        raise Denied
    found = tokens.find(db, request["accessor"])
    if found is None or found.has_ended(request.parts.clock.now()):
        raise NotFound("ACL token not found", index=max(db.table_index("tokens"), 1))
    secret = request.token if is_own else _kept_secret(request, db, found)
    return _shown(found, secret, _role_names(db))


def _secret_place(accessor: str) -> str:
    return f"{tokens.SECRETS}{accessor}"


def _kept_secret(request: Request, db: Snapshot, token: Token) -> str:
    """Return the secret of a token that was made while a setting had them kept; else nothing."""
    if not request.parts.config.keep_token_secrets:
        return ""
    place = _secret_place(token.accessor)
    sealed = secrets.find(db, place)
    return request.parts.seal.unseal(sealed, place).decode() if sealed else ""


async def create_token(request: Request) -> Reply:
    """Make a token, or change the one that the body names."""
    return await _put_token(request, await request.decoded(TokenRequest))


async def update_token(request: Request) -> Reply:
    """Change the token of the path."""
    body = await request.decoded(TokenRequest)
    if body.accessor_id != request["accessor"]:
        raise Malformed("ACL token accessor does not match request path")
    return await _put_token(request, body)


async def _put_token(request: Request, body: TokenRequest) -> Reply:
    _check_on(request)
    parts = request.parts
    now, accessor, secret = parts.clock.now(), next(parts.ids), next(parts.ids)
    if body.accessor_id:
        secret = request.token if body.accessor_id == request.caller.token.accessor else ""

    def write(tx: Transaction) -> tuple[Token, dict[str, str]]:
        if body.accessor_id:
            return tokens.update(tx, changed_token(tx, body, now)), _role_names(tx)
        token = new_token(tx, body, accessor=accessor, now=now)
        if parts.config.keep_token_secrets:
            place = _secret_place(accessor)
            secrets.put(tx, place, parts.seal.seal(secret.encode(), place))
        return parts.tokens.add(tx, token, secret), _role_names(tx)

    token, names = await parts.store.write(write)
    if not secret:
        secret = parts.store.read(lambda db: _kept_secret(request, db, token))
    return _written(token, secret, names)


async def delete_token(request: Request) -> Reply:
    """End a token."""
    _check_on(request)
    accessor = request["accessor"]

    def write(tx: Transaction) -> int:
        if not tokens.remove(tx, accessor):
            raise Malformed(f"Cannot delete nonexistent tokens: {accessor}")
        return tx.index

    return Reply(index=await request.parts.store.write(write))


def _role_names(db: Snapshot) -> dict[str, str]:
    return {role.id: role.name for role in policies.every_role(db)}


def _whole(token: Token, secret: str, names: dict[str, str]) -> views.WholeToken:
    return views.whole_token(views.token_stub(token, token_digest(token), names), token, secret)


def _shown(token: Token, secret: str, names: dict[str, str]) -> Reply:
    return reply.read(_whole(token, secret, names), token.modify_index)


def _written(token: Token, secret: str, names: dict[str, str]) -> Reply:
    return Reply(body=_whole(token, secret, names), index=token.modify_index)


def written_token(store: Store, issued: Issued) -> Reply:
    """Return the answer that shows a token with its secret, as the only thing in it."""
    names = store.read(_role_names)
    shown = _whole(issued.token, issued.secret, names)
    return Reply(body={"Token": shown}, index=issued.token.modify_index)


# ---- policies --------------------------------------------------------------------------------


def _own_policies(request: Request, db: Snapshot) -> Callable[[str], bool]:
    """Return what tells whether the caller may see a policy: its own, or all."""
    if request.caller.grant.everything:
        return lambda _: True
    return set(names_of(db, request.caller.token)).__contains__


def list_policies(request: Request, db: Snapshot) -> Reply:
    """List the policies that the caller may see."""
    _check_on(request)
    may_see = _own_policies(request, db)
    every = policies.every(db, request.query.text("prefix"))
    found = [named.stub(one) for one in every if may_see(one.name) and one.name != DEFAULT]
    found = only_wanted(found, request.query.text("filter"), views.PolicyStub)
    page = paginate(found, lambda one: ("", one.name), encode, request.query)
    index = max(db.table_index("policies"), 1)
    return reply.read(page.body, index, next_token=page.next_token)


def read_policy(request: Request, db: Snapshot) -> Reply:
    """Show a policy."""
    _check_on(request)
    if not _own_policies(request, db)(request["name"]):
        raise Denied
    found = policies.find(db, request["name"])
    if found is None or found.name == DEFAULT:
        raise NotFound("ACL policy not found", index=max(db.table_index("policies"), 1))
    return reply.read(named.whole(found), found.modify_index)


async def put_policy(request: Request) -> Reply:
    """Make a policy, or change it."""
    _check_on(request)
    body = await request.decoded(PolicyRequest)
    if body.name != request["name"]:
        raise Malformed("ACL policy name does not match request path")
    given = msgspec.convert(body, Policy, from_attributes=True)
    policy = msgspec.structs.replace(
        named.check_policy(given), modified_at=request.parts.clock.now()
    )
    return Reply(index=await request.parts.store.write(partial(_put_policy, policy=policy)))


def _put_policy(tx: Transaction, policy: Policy) -> int:
    named.put(tx, policy)
    return tx.index


async def delete_policy(request: Request) -> Reply:
    """Remove a policy, if it is there."""
    _check_on(request)
    name = request["name"]

    def write(tx: Transaction) -> int:
        policies.remove(tx, name)
        return tx.index

    return Reply(index=await request.parts.store.write(write))


# ---- why -------------------------------------------------------------------------------------


class ExplainRequest(Record, frozen=True, kw_only=True):
    """A question: whether the holder of this token may send this request."""

    token: str = ""  # secret or accessor; empty: nobody's
    policies: list[str] | None = None  # asked about instead: who would have these
    method: str = "GET"
    path: str = ""


async def explain_request(request: Request) -> Reply:
    """Tell which rule allows a request to the holder of a token or of policies, or refuses it."""
    body, parts = await request.decoded(ExplainRequest), request.parts
    if not body.path:
        raise Malformed("Path must name what is requested, for example /v1/jobs")
    if body.token and body.policies:
        raise Malformed("Token and Policies are both named: ask about one of them")

    def find(db: Snapshot) -> Explanation:
        right = parts.rights.of(
            body.method.upper(), body.path, lambda path: mounts.find(db, path) is not None
        )
        token = parts.tokens.find(db, body.token) or tokens.find(db, body.token)
        if body.token and token is None:
            raise NotFound("ACL token not found")
        if body.policies:
            token = _holder(db, body.policies)
        caller = parts.tokens.caller(db, token) if token else parts.tokens.nobody(db)
        return explain(caller, right)

    return Reply(body=parts.store.read(find))


def _holder(db: Snapshot, names: Iterable[str]) -> Token:
    """Return a token as one would be that had these policies. Raises `NotFound`."""
    wanted = tuple(dict.fromkeys(names))
    if missing := [one for one in wanted if policies.find(db, one) is None]:
        raise NotFound(f"ACL policy {missing[0]} not found")
    return Token(accessor="", policies=wanted, created_at=0)


# ---- roles -----------------------------------------------------------------------------------


def list_roles(request: Request, db: Snapshot) -> Reply:
    """List the roles that the caller may see: its own, or all."""
    _check_on(request)
    found = [
        one
        for one in policies.every_role(db, request.query.text("prefix"))
        if _may_see_role(request, one)
    ]
    found = only_wanted(found, request.query.text("filter"), AclRole)
    page = paginate(found, lambda one: ("", one.id), encode, request.query)
    index = max(db.table_index("acl_roles"), 1)
    return reply.read(page.body, index, next_token=page.next_token)


def _may_see_role(request: Request, role: AclRole) -> bool:
    return request.caller.grant.everything or role.id in request.caller.token.roles


def read_role(request: Request, db: Snapshot) -> Reply:
    """Show a role."""
    return _role(request, db, policies.find_role(db, request["role_id"]))


def read_role_by_name(request: Request, db: Snapshot) -> Reply:
    """Show the role of a name."""
    return _role(request, db, policies.role_named(db, request["name"]))


def _role(request: Request, db: Snapshot, found: AclRole | None) -> Reply:
    _check_on(request)
    if not request.caller.grant.everything and (found is None or not _may_see_role(request, found)):
        raise Denied
    if found is None:
        raise NotFound("ACL role not found", index=max(db.table_index("acl_roles"), 1))
    return reply.read(found, found.modify_index)


async def create_role(request: Request) -> Reply:
    """Make a role, or change the one that the body names."""
    return await _put_role(request, await request.decoded(RoleRequest))


async def update_role(request: Request) -> Reply:
    """Change the role of the path."""
    body = await request.decoded(RoleRequest)
    if body.id != request["role_id"]:
        raise Malformed("ACL role ID does not match request path")
    return await _put_role(request, body)


async def _put_role(request: Request, body: RoleRequest) -> Reply:
    _check_on(request)
    fresh = next(request.parts.ids)

    def write(tx: Transaction) -> AclRole:
        before = policies.find_role(tx, body.id) if body.id else None
        if body.id and before is None:
            raise Malformed(f"cannot find role {body.id}")
        role = msgspec.convert(body, AclRole, from_attributes=True)
        role = msgspec.structs.replace(
            role, id=body.id or fresh, create_index=before.create_index if before else 0
        )
        return policies.put_role(tx, named.check_role(tx, role))

    role = await request.parts.store.write(write)
    return Reply(body=role, index=role.modify_index)


async def delete_role(request: Request) -> Reply:
    """Remove a role."""
    _check_on(request)
    role_id = request["role_id"]

    def write(tx: Transaction) -> int:
        if not policies.remove_role(tx, role_id):
            raise NotFound("ACL role not found")
        return tx.index

    return Reply(index=await request.parts.store.write(write))
