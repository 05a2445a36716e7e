"""Requests: what a handler is given, and the table rows that lead to it."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TypeVar

import msgspec

from daemon.acl.check import Caller, Needs
from daemon.fields import Fields
from daemon.parts import Parts
from daemon.web.envelope import Answer
from daemon.web.listeners import Peer
from daemon.web.parameters import Query
from daemon.web.reply import Reply
from daemon.web.socket import Socket
from storage.errors import Denied
from storage.readers import Snapshot
from storage.records.codec import decode

T = TypeVar("T", bound=msgspec.Struct)

DEFAULT_NAMESPACE = "default"
SHORT = 16 * 1024  # bytes of a body that the event loop reads in 3 ms at most


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request, decoded as far as every handler needs it."""

    parts: Parts
    method: str
    path: str
    parameters: Mapping[str, str]  # what stands in the braces of the route's path
    query: Query
    body: bytes
    token: str
    address: str  # of the client; empty when it came through a socket of the machine
    peer: Peer | None = None  # who is known by the socket of the machine that he came through
    accept: str = ""  # what the client names as acceptable; the peer's clients name nothing
    caller: Caller
    needs: Needs  # of the route: what the caller has been found to have
    unknown: list[str] = []  # fields of the body that were passed over, and not told of yet

    @property
    def operator(self) -> int | None:
        """Return the user who needs no token, because the machine knows him as an operator."""
        return self.peer.uid if self.peer and self.peer.is_operator else None

    @property
    def namespace(self) -> str:
        """Return the namespace that the query names; `*` means all in listings."""
        return self.query.text("namespace") or DEFAULT_NAMESPACE

    @property
    def client(self) -> str:
        """Return whose request this is, where requests of one client are counted."""
        return self.caller.token.accessor or self.address

    def decode(self, record: type[T]) -> T:
        """Return the body as a record, in the thread of a read. Raises `Malformed`."""
        return decode(record, self.body, self.unknown)

    async def decoded(self, record: type[T]) -> T:
        """Return the body as a record; a thread reads a long one. Raises `Malformed` or `TooOften`."""
        if len(self.body) <= SHORT:
            return self.decode(record)
        return await self.parts.admission.run(self.client, partial(self.decode, record))

    def remarks(self) -> list[str]:
        """Return what to say of the fields that were passed over; whoever asks for it says it."""
        found = [f'unknown field "{name}" is ignored' for name in self.unknown]
        self.unknown.clear()
        return found

    def sees(self, namespace: str) -> bool:
        """Tell whether the caller may see an object of this namespace."""
        return self.caller.grant.may(namespace, *self.needs.any_of)

    def require(self, namespace: str) -> None:
        """Raise `Denied` unless the caller has in this namespace what the route needs."""
        if not self.sees(namespace):
            raise Denied

    def __getitem__(self, name: str) -> str:
        """Return what stands in the place of `{name}` in the route's path."""
        return self.parameters[name]


ReadHandler = Callable[[Request, Snapshot], Reply]
WriteHandler = Callable[[Request], Awaitable[Reply]]
TalkHandler = Callable[[Request, Socket], Awaitable[None]]


class Read(msgspec.Struct, frozen=True):
    """A route that shows state. It blocks on request when it names topics to watch.

    Topics may hold the braces of the path, `{namespace}` and `{prefix}`; `any_method` is for
    the two endpoints on which the peer checks none, `methods` for what asks by a body as well.
    `tables`: all that the answer depends on, so that it may be given again while they stand still.
    `shows_secrets`: the audit may be asked to know who has seen it.
    """

    path: str
    handler: ReadHandler
    needs: Needs
    watch: tuple[str, ...] = ()
    any_method: bool = False
    long: bool = False
    methods: frozenset[str] = frozenset({"GET"})
    tables: tuple[str, ...] = ()
    shows_secrets: bool = False


class Write(msgspec.Struct, frozen=True):
    """A route that does something; POST and PUT mean the same."""

    method: str
    path: str
    handler: WriteHandler
    needs: Needs
    acts: bool = False  # does something that the store does not see: the audit has to be told
    in_any_region: bool = False  # answered here whatever region the query names
    hot: bool = False  # so frequent that the lean door answers it (`lean.py`)

    @property
    def methods(self) -> frozenset[str]:
        """Return the methods that lead here."""
        return frozenset({"POST", "PUT"}) if self.method == "POST" else frozenset({self.method})


class Stream(msgspec.Struct, frozen=True):
    """A route that shows what is written while it is written."""

    path: str
    handler: WriteHandler
    needs: Needs

    methods = frozenset({"GET"})


class Talk(msgspec.Struct, frozen=True):
    """A route that is a conversation over a WebSocket."""

    path: str
    handler: TalkHandler
    needs: Needs

    methods = frozenset({"GET", "POST", "PUT"})


Route = Read | Write | Stream | Talk


# ---- the secrets side ----------------------------------------------------------------------------


class Operation(StrEnum):
    """What a call of the secrets side wants of its path; policies name them otherwise only for writes."""

    READ = "read"
    LIST = "list"
    WRITE = "write"
    DELETE = "delete"


class Call(Request, frozen=True, kw_only=True):
    """A request of the secrets side."""

    operation: Operation
    fields: Fields  # of the body when it writes, else of the query
    mount: str = ""  # path of the mount that serves it, with its slash
    wrap_ttl: int = 0  # seconds for which the answer is to be wrapped; 0: it is not

    @property
    def name(self) -> str:
        """Return the path as policies name it: without the version."""
        return self.path.removeprefix("/v1/")


CallHandler = Callable[[Call], Awaitable[Answer | Reply]]


class Endpoint(msgspec.Struct, frozen=True):
    """A path of the secrets side: what each operation on it does.

    In the path, `{mount}` is the path of any mount of a method, `{name}` a simple name, and any
    other parameter takes all up to the rest. `exists` tells an update from a creation: policies
    make a difference. `is_open`: needs no token. `is_bare`: answers without an envelope and is
    no part of what can be asked for help. Fields that are not in `knows` are warned about, and so
    are those in `keeps`, on which nothing acts, in a header; `a.b` is the field b of the object a. `sudo`: policies must grant that besides. `hot`: writes come through the lean door (`lean.py`).
    """

    path: str
    read: CallHandler | None = None
    write: CallHandler | None = None
    delete: CallHandler | None = None
    list: CallHandler | None = None
    exists: Callable[[Call], bool] | None = None
    is_open: bool = False
    is_bare: bool = False
    sudo: bool = False
    knows: tuple[str, ...] | None = None
    keeps: tuple[str, ...] = ()
    hot: bool = False

    def handler(self, operation: Operation) -> CallHandler | None:
        """Return what serves an operation, if it is offered."""
        return {
            Operation.READ: self.read,
            Operation.WRITE: self.write,
            Operation.DELETE: self.delete,
            Operation.LIST: self.list,
        }[operation]
