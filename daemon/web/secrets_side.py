"""The secrets side: calls below `/v1/sys`, `/v1/auth` and `/v1/identity`, answered in its own form.

The order of checks is the peer's, because clients tell by it what they did wrong (golden:
http-errors, auth-headers): the namespace, the method, the body, the token, the mount, the path,
what may be done there, and only then what the endpoint itself says.
"""

from collections.abc import Iterable, Mapping

import msgspec

from daemon.acl.audit import Trail
from daemon.acl.check import Caller
from daemon.acl.paths import Permission
from daemon.fields import Fields, Values, of_query, parse
from daemon.jobspec.gotext import quote, words
from daemon.parts import Parts
from daemon.web import envelope, wrapping
from daemon.web.endpoints import SIDES, Endpoints, Found
from daemon.web.envelope import Answer
from daemon.web.reply import Reply, with_remarks
from daemon.web.request import Call, Endpoint, Operation, Request
from storage import origin
from storage.errors import Denied, LoginRefused, Malformed, StewardError, UnknownToken
from storage.queries import mounts
from storage.readers import Snapshot

_OPERATIONS = {
    "GET": Operation.READ,
    "HEAD": Operation.READ,
    "LIST": Operation.LIST,
    "POST": Operation.WRITE,
    "PUT": Operation.WRITE,
    "DELETE": Operation.DELETE,
}
_PATCH = "application/merge-patch+json"
_OF_THE_FRAME = frozenset({"list", "help", "pretty"})  # parameters that are no fields
_ROOT_NAMESPACE = frozenset({"", "root", "/", "root/"})


class SecretsSide:
    """What answers these calls."""

    def __init__(self, parts: Parts, endpoints: Iterable[Endpoint]) -> None:
        self._parts = parts
        self._endpoints = Endpoints(endpoints)

    @staticmethod
    def serves(path: str) -> bool:
        """Tell whether a path belongs to this side."""
        return path.startswith(SIDES)

    def is_hot(self, method: str, path: str) -> bool:
        """Tell whether a call writes at an endpoint that is hot. Raises `StorageError`."""
        found = self._parts.store.read(lambda db: self._find(db, path))
        endpoint = found.endpoint if found else None
        return endpoint is not None and endpoint.hot and _OPERATIONS.get(method) == Operation.WRITE

    async def answer(self, asked: Request, headers: Mapping[str, str], trail: Trail) -> Reply:
        """Answer a call; a refusal is an answer as well."""
        found = self._parts.store.read(lambda db: self._find(db, asked.path))
        endpoint = found.endpoint if found else None
        try:
            if refusal := _refusal(asked, headers, endpoint):
                return refusal
            operation = _operation(asked)
            is_open = endpoint is not None and _is_open(endpoint, operation)
            fields = Fields(_values(asked, operation, headers))
            wrap_ttl = _wrap_ttl(headers)
            trail.ask("", asked.token)
            caller = await self._caller(asked, is_open=is_open)
            trail.known(caller.token.accessor)
        except StewardError as error:
            return envelope.of_error(error, is_login=True)
        call = Call(
            parts=asked.parts,
            method=asked.method,
            path=asked.path,
            parameters=found.parameters if found else {},
            query=asked.query,
            body=asked.body,
            token=asked.token,
            address=asked.address,
            peer=asked.peer,
            caller=caller,
            needs=asked.needs,
            operation=operation,
            fields=fields,
            mount=found.mount if found else "",
            wrap_ttl=wrap_ttl,
        )
        return await self._served(call, found, trail, is_login=is_open)

    async def _caller(self, asked: Request, *, is_open: bool) -> Caller:
        """Return who asks; where everybody may ask, nobody has to. Raises `UnknownToken`."""
        tokens = self._parts.tokens
        if not is_open:
            return await tokens.authenticate(asked.token, asked.address, operator=asked.operator)
        try:
            return tokens.resolve(asked.token, asked.address)
        except UnknownToken:
            return tokens.resolve("")

    async def _served(
        self, call: Call, found: Found | None, trail: Trail, *, is_login: bool
    ) -> Reply:
        endpoint = found.endpoint if found else None
        try:
            if not is_login:
                _require(call, endpoint)
            if found is None:
                return envelope.errors(
                    404, f"no handler for route {quote(call.name)}. route entry not found."
                )
            if endpoint is None and "help" in call.query and _is_mount(call, found):
                return envelope.plain(_help_of_mount(call))
            if endpoint is None:
                return envelope.listed(404, "unsupported path")
            if "help" in call.query:
                return envelope.plain(_help(endpoint, call))
            if (handler := endpoint.handler(call.operation)) is None:
                return _not_offered(endpoint, call.operation)
            answer = await handler(call)
        except StewardError as error:
            if isinstance(error, LoginRefused):
                trail.refuses(error.reason)
            return envelope.of_error(error, is_login=is_login)
        if isinstance(answer, Reply):
            return answer
        reply = await _enveloped(call, _with_warning(answer, endpoint, call))
        return with_remarks(reply, _kept(endpoint, call))

    def _find(self, db: Snapshot, path: str) -> Found | None:
        return self._endpoints.find(path.removeprefix("/v1/"), lambda one: mounts.is_there(db, one))


async def _enveloped(call: Call, answer: Answer) -> Reply:
    """Return an answer in its envelope, wrapped where the caller asks for that."""
    if call.wrap_ttl and not answer.is_empty:
        answer = await wrapping.wrap(call, answer)
    if answer.wrap_info:
        return envelope.enveloped(answer, path="", request_id="")
    return envelope.enveloped(answer, path=call.name, request_id=origin.current())


def _is_open(endpoint: Endpoint, operation: Operation) -> bool:
    """Return whether a call needs no token.

    A list asks for the path with a slash behind it, which is open only where there is a list.
    """
    is_another_path = operation is Operation.LIST and not (endpoint.list or endpoint.is_bare)
    return endpoint.is_open and not is_another_path


def _require(call: Call, endpoint: Endpoint | None) -> None:
    """Return if the caller's policies allow a call. Raises `Denied`."""
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


def _is_within(permission: Permission, call: Call) -> bool:
    """Tell whether what a call says, and how it wants its answer, is within its rule's bounds."""
    says_too_much = call.operation is Operation.WRITE and not permission.accepts(call.fields.values)
    return not says_too_much and permission.wraps_in(call.wrap_ttl)


def _wrap_ttl(headers: Mapping[str, str]) -> int:
    """Return for how many seconds an answer is to be wrapped. Raises `Malformed`."""
    text = headers.get("x-service-wrap-ttl") or headers.get("x-vault-wrap-ttl", "")
    if not text:
        return 0
    try:
        seconds = Fields({"ttl": text}).signed_seconds("ttl")
    except Malformed as error:
        why = str(error).partition(": ")[2]
        raise Malformed(f"error parsing X-Service-Wrap-TTL header: {why}") from None
    if seconds < 0:
        why = "requested wrap ttl cannot be negative"
        raise Malformed(f"error parsing X-Service-Wrap-TTL header: {why}")
    return seconds


def _capability(call: Call, endpoint: Endpoint | None) -> str:
    if call.operation is not Operation.WRITE:
        return call.operation
    if endpoint is None or endpoint.exists is None or endpoint.exists(call):
        return "update"
    return "create"


def _refusal(asked: Request, headers: Mapping[str, str], endpoint: Endpoint | None) -> Reply | None:
    """Return why a request is refused before its body is looked at. Raises `Malformed`."""
    if "\0" in asked.path:
        return Reply(status=400)
    if "\ufffd" in asked.path:
        return envelope.listed(500, "the path is not valid UTF-8")
    namespace = headers.get("x-service-namespace") or headers.get("x-vault-namespace", "")
    if namespace not in _ROOT_NAMESPACE:
        return envelope.errors(404, "namespace not found")
    if asked.method == "PATCH":
        return _patch_refusal(headers.get("content-type", ""))
    if asked.method == "OPTIONS":
        return envelope.listed(405, "unsupported operation")
    if asked.method == "HEAD" and not (endpoint and endpoint.is_bare):
        return envelope.bodiless(405)
    if asked.method not in _OPERATIONS:
        return envelope.errors(405)
    if asked.method in ("POST", "PUT") and asked.path.endswith("/"):
        raise Malformed("cannot write to a path ending in '/'")
    return None


def _patch_refusal(content_type: str) -> Reply:
    if content_type.partition(";")[0].strip() == _PATCH:
        return envelope.listed(405, "unsupported operation")
    return envelope.errors(415, f"PATCH requires Content-Type of {_PATCH}, provided {content_type}")


def _operation(asked: Request) -> Operation:
    operation = _OPERATIONS[asked.method]
    if operation == Operation.READ and asked.query.flag("list"):
        return Operation.LIST
    return operation


def _values(asked: Request, operation: Operation, headers: Mapping[str, str]) -> Values:
    if operation == Operation.WRITE:
        return parse(asked.body, headers.get("content-type", ""))
    return of_query(pair for pair in asked.query.pairs if pair[0] not in _OF_THE_FRAME)


def _not_offered(endpoint: Endpoint, operation: Operation) -> Reply:
    """Return the answer to an operation that an endpoint does not have."""
    if operation == Operation.LIST and not endpoint.is_bare:
        # A list is a list of what is below: the peer looks for the path with a slash behind it.
        return envelope.listed(404, "unsupported path")
    if endpoint.is_bare:
        return envelope.errors(405)
    if endpoint.is_open:
        return envelope.errors(405, "unsupported operation")
    return envelope.listed(405, "unsupported operation")


def _with_warning(answer: Answer, endpoint: Endpoint, call: Call) -> Answer:
    """Return an answer that names the fields that are passed over."""
    if endpoint.knows is None or (endpoint.write and call.operation is not Operation.WRITE):
        return answer
    if not (unknown := call.fields.unknown(endpoint.knows)):
        return answer
    warning = f"Endpoint ignored these unrecognized parameters: {words(unknown)}"
    return msgspec.structs.replace(answer, warnings=[*answer.warnings, warning])


def _kept(endpoint: Endpoint, call: Call) -> list[str]:
    """Return what to say of the fields on which nothing acts; most such answers have no body."""
    if call.operation is not Operation.WRITE:
        return []
    return [
        f'field "{name}" is kept and has no effect' for name in call.fields.said(endpoint.keeps)
    ]


def _is_mount(call: Call, found: Found) -> bool:
    return f"{call.name.rstrip('/')}/" == f"auth/{found.mount}"


def _help_of_mount(call: Call) -> Mapping[str, object]:
    text = f"{call.name}: a login method. Its paths are config, role, login and rotate-root."
    return {"help": text, "openapi": {}, "see_also": None}


def _help(endpoint: Endpoint, call: Call) -> Mapping[str, object]:
    offered = [one for one in Operation if endpoint.handler(one)]
    text = f"{endpoint.path}: {', '.join(offered)}. The documentation of the API says more."
    methods = {"read": "get", "list": "get", "write": "post", "delete": "delete"}
    described = {methods[one]: {"responses": {"200": {"description": "OK"}}} for one in offered}
    openapi = {
        "openapi": "3.0.2",
        "info": {"title": "Steward", "version": "v1"},
        "paths": {f"/{call.name}": described},
    }
    return {"help": text, "openapi": openapi, "see_also": None}
