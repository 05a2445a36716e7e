"""The Vault API below `/v1/sys`, `/v1/auth` and `/v1/identity`, in Vault's response format.

The order of checks is Vault's, because it decides which error a client gets (source: Vault's
recorded responses `http-errors`, `auth-headers`). The order is: namespace, method, body, token,
mount, path, capability, endpoint.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from daemon.acl.audit import AuditScope
from daemon.acl.check import Caller
from daemon.acl.path_rules import PathPermission
from daemon.app.context import AppContext
from daemon.text.go_format import format_list, quote
from daemon.text.request_fields import RequestFields, Values, of_query, parse
from daemon.web import vault_envelope
from daemon.web.fairness import identify
from daemon.web.lazy import import_handler
from daemon.web.reply import HandlerReply, with_remarks
from daemon.web.request import (
    SHORT,
    SHORT_BODY,
    Body,
    Endpoint,
    Operation,
    Request,
    RouteCall,
)
from daemon.web.vault_envelope import VaultBody
from daemon.web.vault_router import SIDES, EndpointMatch, VaultRouter
from storage import request_context
from storage.errors import Denied, LoginRefused, Malformed, StewardError, TooLarge, UnknownToken
from storage.queries import mounts
from storage.read_pool import ReadSnapshot

_OPERATIONS = {
    "GET": Operation.READ,
    "HEAD": Operation.READ,
    "LIST": Operation.LIST,
    "POST": Operation.WRITE,
    "PUT": Operation.WRITE,
    "DELETE": Operation.DELETE,
}
_PATCH = "application/merge-patch+json"
_OF_THE_FRAME = frozenset({"list", "help", "pretty"})  # parameters that are not fields
_OF_A_LIST = _OF_THE_FRAME | {"after", "limit"}
_ROOT_NAMESPACE = frozenset({"", "root", "/", "root/"})


class VaultApi:
    """The dispatcher of the Vault API."""

    def __init__(self, parts: AppContext, endpoints: Iterable[Endpoint]) -> None:
        self._parts = parts
        self._endpoints = VaultRouter(endpoints)

    @staticmethod
    def serves(path: str) -> bool:
        """Return whether a path belongs to the Vault API."""
        return path.startswith(SIDES)

    def is_hot(self, method: str, path: str) -> bool:
        """Return whether a call writes to an endpoint of the fast path. Raises `StorageError`."""
        match = self._parts.store.read(lambda db: self._find(db, path))
        endpoint = match.endpoint if match else None
        return endpoint is not None and endpoint.hot and _OPERATIONS.get(method) == Operation.WRITE

    async def answer(
        self,
        request: Request,
        headers: Mapping[str, str],
        audit_scope: AuditScope,
        long_body: Body | None = None,
    ) -> HandlerReply:
        """Answer a call, with an error response if it is rejected.

        If the body is long, `long_body` reads it after the check of the token and the path.
        """
        match = self._parts.store.read(lambda db: self._find(db, request.path))
        endpoint = match.endpoint if match else None
        try:
            if refusal := _refusal(request, headers, endpoint):
                return refusal
            operation = _operation(request)
            is_open = endpoint is not None and _is_open(endpoint, operation)
            if long_body is None:
                fields = await _fields(endpoint, request, operation, headers)
            wrap_ttl = _wrap_ttl(headers)
            audit_scope.set_caller("", request.token)
            caller = await self._caller(request, is_open=is_open)
            audit_scope.known(caller.token.accessor)
            identify(caller.token.accessor)
            if long_body is not None:
                if endpoint is not None and operation is Operation.WRITE:
                    request = await self._with_body(request, caller, long_body, is_open=is_open)
                fields = await _fields(endpoint, request, operation, headers)
        except StewardError as error:
            return vault_envelope.of_error(error, is_login=True)
        call = RouteCall(
            parts=request.parts,
            method=request.method,
            path=request.path,
            parameters=match.parameters if match else {},
            query=request.query,
            body=request.body,
            token=request.token,
            address=request.address,
            user=request.user,
            peer=request.peer,
            caller=caller,
            needs=request.needs,
            operation=operation,
            fields=fields,
            mount=match.mount if match else "",
            wrap_ttl=wrap_ttl,
        )
        return await self._served(call, match, audit_scope, is_login=is_open)

    async def _with_body(
        self, request: Request, caller: Caller, long_body: Body, *, is_open: bool
    ) -> Request:
        """Return a call with its long body.

        If the caller may not write to the path, the call is returned without its body. Raises
        `TooLarge` if the endpoint needs no token, unless the caller has all permissions. Raises
        the errors of `long_body`.
        """
        if self._parts.tokens.asks and not caller.grant.everything:
            if is_open:
                raise TooLarge(f"the body is larger than {SHORT_BODY} bytes")
            permission = caller.grant.permission(request.path.removeprefix("/v1/"))
            if permission is None or permission.capabilities.isdisjoint(("create", "update")):
                return request  # `_require` rejects the call
        return msgspec.structs.replace(request, body=await long_body())

    async def _caller(self, request: Request, *, is_open: bool) -> Caller:
        """Return the caller; an open endpoint needs no token. Raises `UnknownToken`."""
        tokens = self._parts.tokens
        if not is_open:
            return await tokens.authenticate(
                request.token,
                request.address,
                client_key=request.client_key,
                operator=request.operator,
            )
        try:
            return await tokens.identify(request.token, request.address)
        except UnknownToken:
            return await tokens.identify("")

    async def _served(
        self,
        call: RouteCall,
        endpoint_match: EndpointMatch | None,
        audit_scope: AuditScope,
        *,
        is_login: bool,
    ) -> HandlerReply:
        endpoint = endpoint_match.endpoint if endpoint_match else None
        try:
            if not is_login:
                _permit(call, endpoint)
            if endpoint_match is None:
                return _unknown_path(call)
            if endpoint is None and "help" in call.query and _is_mount(call, endpoint_match):
                return vault_envelope.plain(_help_of_mount(call))
            if endpoint is None:
                return vault_envelope.listed(404, "unsupported path")
            if "help" in call.query:
                return vault_envelope.plain(_help(endpoint, call))
            if (handler := endpoint.handler(call.operation)) is None:
                return _not_offered(endpoint, call.operation)
            await import_handler(handler)
            answer = await handler(call)
            _note_login(call, is_login=is_login)
            if isinstance(answer, HandlerReply):
                return answer
            reply = await _enveloped(call, _with_warning(answer, endpoint, call))
        except StewardError as error:
            if isinstance(error, LoginRefused):
                audit_scope.refuses(error.reason)
            return vault_envelope.of_error(error, is_login=is_login)
        return with_remarks(reply, [*_warn_without_effect(endpoint, call), *call.remarks()])

    def _find(self, db: ReadSnapshot, path: str) -> EndpointMatch | None:
        return self._endpoints.find(
            path.removeprefix("/v1/"), lambda mount: mounts.exists(db, mount)
        )


async def _enveloped(call: RouteCall, answer: VaultBody) -> HandlerReply:
    """Return a response in its envelope. Wrap it if the caller requests response wrapping."""
    if call.wrap_ttl and not answer.is_empty:
        from daemon.web.response_wrapping import wrap  # imported late: few responses are wrapped

        answer = await wrap(call, answer)
    if answer.wrap_info:
        return vault_envelope.enveloped(answer, path="", request_id="")
    return vault_envelope.enveloped(answer, path=call.name, request_id=request_context.current())


def _permit(call: RouteCall, endpoint: Endpoint | None) -> None:
    """Record that the caller's policies allow a call. Raises `Denied` if they do not."""
    _require(call, endpoint)
    request_context.show_permission()


def _note_login(call: RouteCall, *, is_login: bool) -> None:
    """Record that a call was permitted, if it was a successful login."""
    if is_login and call.operation is Operation.WRITE:
        request_context.show_permission()


def _is_open(endpoint: Endpoint, operation: Operation) -> bool:
    """Return whether a call needs no token.

    As in Vault, a list operation applies to the path with a slash at the end. That path is open
    only if the endpoint supports lists.
    """
    is_another_path = operation is Operation.LIST and not (endpoint.list or endpoint.is_bare)
    return endpoint.is_open and not is_another_path


def _require(call: RouteCall, endpoint: Endpoint | None) -> None:
    """Raise `Denied` unless the caller's policies allow a call."""
    grant = call.caller.grant
    if grant.everything:
        return
    listing = call.operation is Operation.LIST
    path = call.name.rstrip("/") + "/" if listing else call.name
    permission = grant.permission(path, listing=listing)
    allowed = permission.capabilities if permission else frozenset()
    needed = {_capability(call, endpoint), *(("sudo",) if endpoint and endpoint.sudo else ())}
    if permission and needed <= allowed and _is_within(permission, call):
        return
    raise Denied if call.token else UnknownToken


def _is_within(permission: PathPermission, call: RouteCall) -> bool:
    """Return whether `permission` allows the call's parameters and wrapping TTL."""
    says_too_much = call.operation is Operation.WRITE and not permission.accepts(call.fields.values)
    return not says_too_much and permission.wraps_in(call.wrap_ttl)


def _wrap_ttl(headers: Mapping[str, str]) -> int:
    """Return the wrapping TTL in seconds; 0 if no header requests wrapping. Raises `Malformed`."""
    text = headers.get("x-service-wrap-ttl") or headers.get("x-vault-wrap-ttl", "")
    if not text:
        return 0
    try:
        seconds = RequestFields({"ttl": text}).signed_seconds("ttl")
    except Malformed as error:
        why = str(error).partition(": ")[2]
        raise Malformed(f"error parsing X-Service-Wrap-TTL header: {why}") from None
    if seconds < 0:
        why = "requested wrap ttl cannot be negative"
        raise Malformed(f"error parsing X-Service-Wrap-TTL header: {why}")
    return seconds


def _capability(call: RouteCall, endpoint: Endpoint | None) -> str:
    if call.operation is not Operation.WRITE:
        return call.operation
    if endpoint is None or endpoint.exists is None or endpoint.exists(call):
        return "update"
    return "create"


def _refusal(
    request: Request, headers: Mapping[str, str], endpoint: Endpoint | None
) -> HandlerReply | None:
    """Return the response if a request must be rejected before its body is read, else None.

    Raises `Malformed`.
    """
    if "\0" in request.path:
        return HandlerReply(status=400)
    if "\ufffd" in request.path:
        return vault_envelope.listed(500, "the path is not valid UTF-8")
    namespace = headers.get("x-service-namespace") or headers.get("x-vault-namespace", "")
    if namespace not in _ROOT_NAMESPACE:
        return vault_envelope.errors(404, "namespace not found")
    if request.method == "PATCH":
        return _patch_refusal(headers.get("content-type", ""))
    if request.method == "OPTIONS":
        return vault_envelope.listed(405, "unsupported operation")
    if request.method == "HEAD" and not (endpoint and endpoint.is_bare):
        return vault_envelope.bodiless(405)
    if request.method not in _OPERATIONS:
        return vault_envelope.errors(405)
    if request.method in ("POST", "PUT") and request.path.endswith("/"):
        raise Malformed("cannot write to a path ending in '/'")
    return None


def _patch_refusal(content_type: str) -> HandlerReply:
    if content_type.partition(";")[0].strip() == _PATCH:
        return vault_envelope.listed(405, "unsupported operation")
    return vault_envelope.errors(
        415, f"PATCH requires Content-Type of {_PATCH}, provided {content_type}"
    )


def _operation(request: Request) -> Operation:
    operation = _OPERATIONS[request.method]
    if operation == Operation.READ and request.query.flag("list"):
        return Operation.LIST
    return operation


async def _fields(
    endpoint: Endpoint | None, request: Request, operation: Operation, headers: Mapping[str, str]
) -> RequestFields:
    """Return the fields of a request; a thread decodes a long body.

    Raises `Malformed` or `TooOften`.
    """
    read = partial(_values, endpoint, request, operation, headers)
    if len(request.body) <= SHORT:
        return RequestFields(read())
    return RequestFields(await request.parts.admission.run(request.client, read))


def _values(
    endpoint: Endpoint | None, request: Request, operation: Operation, headers: Mapping[str, str]
) -> Values:
    if operation == Operation.WRITE:
        return parse(request.body, headers.get("content-type", ""))
    has_pages = operation == Operation.LIST and not (endpoint and endpoint.lists_all)
    frame_names = _OF_A_LIST if has_pages else _OF_THE_FRAME
    return of_query(pair for pair in request.query.pairs if pair[0] not in frame_names)


def _not_offered(endpoint: Endpoint, operation: Operation) -> HandlerReply:
    """Return the response to an operation that an endpoint does not support."""
    if operation == Operation.LIST and not endpoint.is_bare:
        # A list needs an endpoint with a list: Vault looks up the path with a slash at the end.
        return vault_envelope.listed(404, "unsupported path")
    if endpoint.is_bare:
        return vault_envelope.errors(405)
    if endpoint.is_open:
        return vault_envelope.errors(405, "unsupported operation")
    return vault_envelope.listed(405, "unsupported operation")


def _with_warning(answer: VaultBody, endpoint: Endpoint, call: RouteCall) -> VaultBody:
    """Return a response with a warning about ignored fields."""
    if endpoint.knows is None or (endpoint.write and call.operation is not Operation.WRITE):
        return answer
    if not (unknown := call.fields.unknown(endpoint.knows)):
        return answer
    warning = f"Endpoint ignored these unrecognized parameters: {format_list(unknown)}"
    return msgspec.structs.replace(answer, warnings=[*answer.warnings, warning])


def _warn_without_effect(endpoint: Endpoint, call: RouteCall) -> list[str]:
    """Return warnings about fields without effect.

    They are sent in a header, because most such responses have no body.
    """
    if call.operation is not Operation.WRITE:
        return []
    return [
        f'field "{name}" is stored but has no effect'
        for name in call.fields.present(endpoint.keeps)
    ]


def _is_mount(call: RouteCall, endpoint_match: EndpointMatch) -> bool:
    return f"{call.name.rstrip('/')}/" == f"auth/{endpoint_match.mount}"


def _unknown_path(call: RouteCall) -> HandlerReply:
    """Return the response for an unknown path; a help request lists the paths below it."""
    above = f"/v1/{call.name.rstrip('/')}/"
    below = sorted(
        {
            endpoint_path
            for endpoint_path in call.parts.rights().endpoint_paths
            if endpoint_path.startswith(above)
        }
    )
    if "help" in call.query and below:
        lines = [f"    {endpoint_path.removeprefix('/v1/')}" for endpoint_path in below]
        text = "\n".join((f"{call.name}: these paths exist.", "", *lines))
        return vault_envelope.plain({"help": text, "openapi": {}, "see_also": None})
    return vault_envelope.errors(
        404, f"no handler for route {quote(call.name)}. route entry not found."
    )


def _help_of_mount(call: RouteCall) -> Mapping[str, object]:
    text = f"{call.name}: a login method. Its paths are config, role, login and rotate-root."
    return {"help": text, "openapi": {}, "see_also": None}


def _help(endpoint: Endpoint, call: RouteCall) -> Mapping[str, object]:
    offered = [operation for operation in Operation if endpoint.handler(operation)]
    text = f"{endpoint.path}: {', '.join(offered)}. See the API documentation."
    methods = {"read": "get", "list": "get", "write": "post", "delete": "delete"}
    described = {
        methods[operation]: {"responses": {"200": {"description": "OK"}}} for operation in offered
    }
    openapi = {
        "openapi": "3.0.2",
        "info": {"title": "Steward", "version": "v1"},
        "paths": {f"/{call.name}": described},
    }
    return {"help": text, "openapi": openapi, "see_also": None}
