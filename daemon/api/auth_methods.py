"""Auth methods and binding rules of the jobs API, and the login with a JWT."""

from functools import partial

import msgspec

from daemon.api.acl import check_acls_on, issued_reply
from daemon.api.paging import Listing, query_factory, show
from daemon.identity import auth_methods as methods
from daemon.identity import binding_rules as rules
from daemon.identity.jwt_keys import MethodKeys
from daemon.identity.jwt_login import (
    JwtLoginRequest,
    OidcCompletion,
    OidcUrlRequest,
    find_method,
    log_in,
)
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import auth_methods
from storage.read_pool import ReadSnapshot
from storage.records.auth_method import (
    AuthMethod,
    AuthMethodRequest,
    BindingRule,
    BindingRuleRequest,
    method_stub,
    method_view,
    rule_stub,
    rule_view,
)
from storage.records.codec import encode
from storage.writer import Transaction

_NO_METHOD = "ACL auth-method not found"
_NO_RULE = "ACL binding rule not found"


# --- methods ------------------------------------------------------------------------------------


def list_methods(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List all methods; a client needs them before it can log in."""
    check_acls_on(request)
    to_page_request = query_factory(request, None, {})
    listing = Listing[AuthMethod](
        rows=lambda db, start, reverse: auth_methods.page(db, to_page_request(start, reverse)),
        key=lambda method: ("", method.name),
        line=lambda _, method: encode(method_stub(method)),
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index("auth_methods"), 1))


def read_method(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a method, without its secrets."""
    check_acls_on(request)
    method = auth_methods.find(db, request["name"])
    if method is None:
        raise NotFound(_NO_METHOD, index=max(db.table_index("auth_methods"), 1))
    return reply.read_reply(method_view(method), method.modify_index)


async def create_method(request: Request) -> HandlerReply:
    """Create a method, or change the method that the body names."""
    return await _put_method(request, await request.decoded(AuthMethodRequest))


async def update_method(request: Request) -> HandlerReply:
    """Change the method in the path, or create it."""
    body = await request.decoded(AuthMethodRequest)
    if body.name != request["name"]:
        raise Malformed("ACL auth-method name does not match request path")
    return await _put_method(request, body)


async def _put_method(request: Request, body: AuthMethodRequest) -> HandlerReply:
    check_acls_on(request)
    now = request.parts.clock.now()
    method = await request.parts.store.write(partial(methods.put_method, request=body, now=now))
    return HandlerReply(body=method_view(method), index=method.modify_index)


async def delete_method(request: Request) -> HandlerReply:
    """Delete a method with its binding rules. Its tokens remain until they expire."""
    check_acls_on(request)
    name = request["name"]

    def write(tx: Transaction) -> int:
        if not auth_methods.remove(tx, name):
            raise NotFound(_NO_METHOD)
        return tx.index

    return HandlerReply(index=await request.parts.store.write(write))


# --- binding rules ------------------------------------------------------------------------------


def list_rules(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the binding rules of all methods."""
    check_acls_on(request)
    to_page_request = query_factory(request, None, {})
    listing = Listing[BindingRule](
        rows=lambda db, start, reverse: auth_methods.rule_page(db, to_page_request(start, reverse)),
        key=lambda rule: ("", rule.id),
        line=lambda _, rule: encode(rule_stub(rule)),
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index("binding_rules"), 1))


def read_rule(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a binding rule."""
    check_acls_on(request)
    binding_rule = auth_methods.find_rule(db, request["rule_id"])
    if binding_rule is None:
        raise NotFound(_NO_RULE, index=max(db.table_index("binding_rules"), 1))
    return reply.read_reply(rule_view(binding_rule), binding_rule.modify_index)


async def create_rule(request: Request) -> HandlerReply:
    """Create a binding rule, or change the rule that the body names."""
    return await _put_rule(request, await request.decoded(BindingRuleRequest))


async def update_rule(request: Request) -> HandlerReply:
    """Change the binding rule in the path."""
    body = await request.decoded(BindingRuleRequest)
    rule_id = request["rule_id"]
    if body.id not in ("", rule_id):
        raise Malformed("ACL binding rule ID does not match request path")
    return await _put_rule(request, msgspec.structs.replace(body, id=rule_id))


async def _put_rule(request: Request, body: BindingRuleRequest) -> HandlerReply:
    check_acls_on(request)
    put = partial(
        rules.put_rule, request=body, fresh=next(request.parts.ids), now=request.parts.clock.now()
    )
    rule = await request.parts.store.write(put)
    return HandlerReply(body=rule_view(rule), index=rule.modify_index)


async def delete_rule(request: Request) -> HandlerReply:
    """Delete a binding rule."""
    check_acls_on(request)
    rule_id = request["rule_id"]

    def write(tx: Transaction) -> int:
        if not auth_methods.remove_rule(tx, rule_id):
            raise NotFound(_NO_RULE)
        return tx.index

    return HandlerReply(index=await request.parts.store.write(write))


# --- logins -------------------------------------------------------------------------------------


async def login(request: Request) -> HandlerReply:
    """Exchange a JWT for a token."""
    check_acls_on(request)
    parts = request.parts
    issued = await log_in(
        parts.store,
        parts.tokens,
        MethodKeys(parts.key_cache),
        parts.config,
        await request.decoded(JwtLoginRequest),
        client_key=request.client_key,
        ids=parts.ids,
        now=parts.clock.now(),
    )
    return issued_reply(parts.store, issued)


async def oidc_url(request: Request) -> HandlerReply:
    """Refuse to begin an OIDC login."""
    return _no_oidc(request, (await request.decoded(OidcUrlRequest)).auth_method_name)


async def oidc_complete(request: Request) -> HandlerReply:
    """Refuse to complete an OIDC login."""
    return _no_oidc(request, (await request.decoded(OidcCompletion)).auth_method_name)


def _no_oidc(request: Request, name: str) -> HandlerReply:
    check_acls_on(request)
    method = request.parts.store.read(partial(find_method, name=name))
    return reply.text(
        f"auth-method {method.name} is of type {method.type}: Steward supports no OIDC login in a "
        "browser. Use an auth method of type JWT, or sign in with the Vault API (steward login)",
        501,
    )
