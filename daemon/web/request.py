"""Requests of handlers, and the types of routes."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from daemon.acl.check import Caller, RequiredCapability
from daemon.app.context import AppContext
from daemon.text.request_fields import RequestFields
from daemon.web.listeners import PeerAddress
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.vault_envelope import VaultBody
from storage import garbage
from storage.errors import Denied
from storage.read_pool import ReadSnapshot
from storage.records.base import inert_fields
from storage.records.codec import decode

if TYPE_CHECKING:  # it imports the HTTP server
    from daemon.web.websocket import WebSocketChannel

T = TypeVar("T", bound=msgspec.Struct)

DEFAULT_NAMESPACE = "default"
R = TypeVar("R")

SHORT_TEXT = 2 * 1024  # bytes of rules that the event loop parses in at most 3 ms
SHORT = 8 * 1024  # bytes of a body that the event loop decodes in at most 2 ms

SHORT_BODY = 64 * 1024  # bytes of a body that is read before its caller is known


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as handlers receive it: decoded, except for its body."""

    parts: AppContext
    method: str
    path: str
    parameters: Mapping[str, str]  # values of the placeholders in the route's path
    query: QueryParameters
    body: bytes
    token: str
    address: str  # the client's address; empty for a Unix socket
    user: str = ""  # the owner of the connection, if users of this host share an address
    peer: PeerAddress | None = None  # the user at the other end of a Unix socket
    accept: str = ""  # the Accept header; Nomad's clients send none
    caller: Caller
    needs: RequiredCapability  # the requirement of the route, which the caller has met
    unknown: list[str] = []  # ignored fields of the body, not reported yet
    warnings: list[str] = []  # further warnings about the request, not reported yet
    passed: list[Callable[[Caller], bool]] = []  # checks of the handler, which streams repeat

    @property
    def operator(self) -> int | None:
        """Return the user ID of an operator, who needs no token; None for any other client."""
        return self.peer.uid if self.peer and self.peer.is_operator else None

    @property
    def client_key(self) -> str:
        """Return the party that a wrong credential counts against: a local user or an address."""
        return self.user or self.address

    @property
    def namespace(self) -> str:
        """Return the namespace in the query; `*` means all in lists."""
        return self.query.text("namespace") or DEFAULT_NAMESPACE

    @property
    def client(self) -> str:
        """Return the client whose requests the rate limits count."""
        return self.caller.token.accessor or self.user or self.address

    def decode(self, record: type[T]) -> T:
        """Return the body as a record. Raises `Malformed`.

        Only handlers of reads call this method, because a read with a long body runs in a thread.
        Other handlers call `decoded`.
        """
        decoded = decode(record, self.body, self.unknown)
        self.warnings.extend(inert_fields(decoded))
        return decoded

    async def decoded(self, record: type[T]) -> T:
        """Return the body as a record; a thread decodes a long body.

        Raises `Malformed` or `TooOften`.
        """
        if len(self.body) <= SHORT:
            return self.decode(record)
        decoded = await self.parts.admission.run(self.client, partial(self.decode, record))
        garbage.free_in_thread(decoded)
        return decoded

    async def worked_out(self, size: int, work: Callable[[], R]) -> R:
        """Return the result of `work`. A thread runs it if the `size` of its input is large.

        Raises `TooOften`, and the errors of `work`.
        """
        return work() if size <= SHORT_TEXT else await self.parts.admission.run(self.client, work)

    def remarks(self) -> list[str]:
        """Return the warnings about the request, and mark them as reported."""
        warnings = [f'unknown field "{name}" is ignored' for name in self.unknown]
        warnings += self.warnings
        self.unknown.clear()
        self.warnings.clear()
        return warnings

    def note_deletion(self, noun: str, name: str, *, existed: bool) -> None:
        """Add a warning unless the object of a deletion existed."""
        if not existed:
            self.warnings.append(f'nothing was deleted: there is no {noun} "{name}"')

    def sees(self, namespace: str) -> bool:
        """Return whether the caller may see objects of this namespace."""
        return self.caller.grant.may(namespace, *self.needs.any_of)

    def require(self, namespace: str) -> None:
        """Raise `Denied` unless the caller has the route's capability in this namespace."""
        self.check(lambda caller: caller.grant.may(namespace, *self.needs.any_of))

    def check(self, passes: Callable[[Caller], bool]) -> None:
        """Raise `Denied` unless the caller passes a check.

        The check is repeated during a stream. If it fails, the stream ends.
        """
        if not passes(self.caller):
            raise Denied
        self.passed.append(passes)

    def still_passes(self, caller: Caller) -> bool:
        """Return whether the caller still passes the checks of the route and the handler."""
        job_id = self.parameters.get("job_id", "")
        return caller.has(self.needs, self.namespace, job_id) and all(
            passes(caller) for passes in self.passed
        )

    def __getitem__(self, name: str) -> str:
        """Return the value of the placeholder `{name}` in the route's path."""
        return self.parameters[name]


Body = Callable[[], Awaitable[bytes]]  # reads the body of a request
ReadHandler = Callable[[Request, ReadSnapshot], HandlerReply]
WriteHandler = Callable[[Request], Awaitable[HandlerReply]]
TalkHandler = Callable[[Request, "WebSocketChannel"], Awaitable[None]]


class ReadRoute(msgspec.Struct, frozen=True):
    """A route that shows state. With topics to watch, it supports blocking queries.

    Topics may use the placeholders `{namespace}` and `{prefix}`, and those of the path.
    `any_method` is for the two endpoints on which Nomad does not check the method. `long` reads
    always run in a thread. `methods` adds methods for reads with a body. `tables` names all tables
    that the response depends on, for the response cache. If `shows_secrets` is true, a setting can
    add these reads to the audit log.
    """

    path: str
    handler: ReadHandler
    needs: RequiredCapability
    watch: tuple[str, ...] = ()
    any_method: bool = False
    long: bool = False
    methods: frozenset[str] = frozenset({"GET"})
    tables: tuple[str, ...] = ()
    shows_secrets: bool = False
    is_definition: bool = False  # job definitions, which callers that may submit jobs see unmasked
    searches: bool = False  # searches names in jobs, so the masks of jobs apply to the search


class WriteRoute(msgspec.Struct, frozen=True):
    """A route that changes something; POST and PUT have the same effect."""

    method: str
    path: str
    handler: WriteHandler
    needs: RequiredCapability
    # The route has an effect outside the store, or changes the store while its response is
    # streamed. So its calls must be reported to the audit log.
    acts: bool = False
    in_any_region: bool = False  # served for any region in the query
    shows_jobs: bool = False  # the response has parts of stored jobs, which are masked
    hot: bool = False  # so frequent that the fast path answers it (`fast_path.py`)

    @property
    def methods(self) -> frozenset[str]:
        """Return the methods of this route."""
        return frozenset({"POST", "PUT"}) if self.method == "POST" else frozenset({self.method})


class StreamRoute(msgspec.Struct, frozen=True):
    """A route with a streamed response.

    If `acts` is true, its calls are in the audit log, and pages of other sites cannot send them.
    """

    path: str
    handler: WriteHandler
    needs: RequiredCapability
    acts: bool = False

    methods = frozenset({"GET"})


class WebSocketRoute(msgspec.Struct, frozen=True):
    """A route for a WebSocket."""

    path: str
    handler: TalkHandler
    needs: RequiredCapability

    methods = frozenset({"GET", "POST", "PUT"})


Route = ReadRoute | WriteRoute | StreamRoute | WebSocketRoute


# --- the Vault API ---


class Operation(StrEnum):
    """The operation of a Vault API call; policies distinguish create and update."""

    READ = "read"
    LIST = "list"
    WRITE = "write"
    DELETE = "delete"


class RouteCall(Request, frozen=True, kw_only=True):
    """A request of the Vault API."""

    operation: Operation
    fields: RequestFields  # from the body of a write, else from the query
    mount: str = ""  # path of its mount, with a slash at the end
    wrap_ttl: int = 0  # TTL of response wrapping in seconds; 0 means no wrapping

    @property
    def name(self) -> str:
        """Return the path without the version, as policies contain it."""
        return self.path.removeprefix("/v1/")

    @property
    def is_long(self) -> bool:
        """Return whether the body is too large for the event loop."""
        return len(self.body) > SHORT


CallHandler = Callable[[RouteCall], Awaitable[VaultBody | HandlerReply]]


class Endpoint(msgspec.Struct, frozen=True):
    """A path of the Vault API, with its operations.

    In the path, `{mount}` matches the path of any mount of a method, and `{name}` a simple name.
    Any other parameter matches everything up to the next literal. `exists` tells an update from a
    creation, because policies distinguish them. If `is_open` is true, calls need no token. If
    `is_bare` is true, responses have no envelope, and the help leaves the path out. Fields outside
    `knows` cause a warning. Fields in `keeps` have no effect and cause a warning in a header. In
    both, `a.b` is field b of the object a. With `sudo`, policies must also grant sudo. With `hot`,
    writes use the fast path (`fast_path.py`). With `lists_all`, a list ignores `after` and `limit`.
    """

    path: str
    read: CallHandler | None = None
    write: CallHandler | None = None
    delete: CallHandler | None = None
    list: CallHandler | None = None
    exists: Callable[[RouteCall], bool] | None = None
    is_open: bool = False
    is_bare: bool = False
    sudo: bool = False
    knows: tuple[str, ...] | None = None
    keeps: tuple[str, ...] = ()
    hot: bool = False
    lists_all: bool = False

    def handler(self, operation: Operation) -> CallHandler | None:
        """Return the handler of an operation, or None."""
        return {
            Operation.READ: self.read,
            Operation.WRITE: self.write,
            Operation.DELETE: self.delete,
            Operation.LIST: self.list,
        }[operation]
