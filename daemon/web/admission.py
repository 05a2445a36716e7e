"""Admission of connections, with limits for each listener and each client.

A client is a user of this host, or the address of another host. All users of this host share the
loopback addresses, so the kernel reports which user opened such a connection. Each listener has a
share of the daemon's file descriptors. So connections to the port cannot use up the descriptors
that the operators' socket, tasks and the store need. An error of `accept` neither stops the daemon
nor fills its log.
"""

import atexit
import logging
import os
import resource
import socket
import struct
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import count

import msgspec
import trio

from daemon.config.settings import Settings
from daemon.web.request_guard import TrustedProxies
from daemon.web.send import Stream, send_now
from storage.errors import StewardError

log = logging.getLogger("steward.web")

MAX_CONNECTIONS = 8192  # per listener; each takes some 10 KiB, and more while it is served
_OWN_NETWORK = 64  # prefix length of the IPv6 network that counts as one client
_LINGER = 1.0  # seconds in which a rejected client can read the reason
_MAX_LINGERING = 64  # rejected clients that receive the reason, per `_LINGER`

_BATCH = 256  # connections that are accepted before other coroutines run
# nanoseconds of CPU time for accepting connections, and for closing rejected ones
_SLICE = 1_500_000
_BEGIN = (
    2  # connections that begin to be served before other coroutines run: each takes some 200 µs
)
_MOST_REJECTED = 8192  # connections that wait to be closed

PAUSE = 0.1  # seconds after an error of `accept`, until descriptors or memory are free again
_APART = 60.0  # seconds between two log lines about the same error

_SOCK_DIAG = 4  # linux/netlink.h: NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # linux/sock_diag.h: SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # linux/netlink.h: NLM_F_REQUEST
_ANYWHERE = bytes(4) + b"\xff" * 8  # any interface, and any cookie
_ADDRESS = 16  # bytes
_QUESTIONS = 64  # in one message; the kernel's buffer must hold all answers
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_MESSAGE = 4096  # bytes of an answer at most
_QUESTION = struct.Struct("=BBBBI")  # struct inet_diag_req_v2: family, protocol, extensions, states
_PORTS = struct.Struct("!HH")
_OWNER = struct.Struct("=II")  # of struct inet_diag_msg: uid, inode
_OWNER_AT = _HEADER.size + 4 + 48 + 12
_PEERCRED = struct.Struct("3i")  # pid, uid, gid


Address = tuple[str, int]  # IPv6 addresses have two more elements


class Share(float, Enum):
    """The share of the daemon's descriptors that the connections of a listener may use."""

    PORT = 1 / 2
    TASKS = 1 / 8
    OPERATORS = 1 / 16


class TooMany(StewardError):
    """A connection exceeds a limit. The client receives the text of this error."""


class Client(msgspec.Struct, frozen=True):
    """The owner of a connection.

    If `is_single` is false, this owner stands for many clients, so its limit is higher.
    """

    name: str
    is_single: bool


def most_connections(share: Share) -> int:
    """Return the connection limit of a listener, from the daemon's descriptor limit."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(MAX_CONNECTIONS, int(descriptors * share)), 1)


def most_rejected(share: Share) -> int:
    """Return how many rejected connections of a listener may wait to be closed.

    They may use an eighth of the listener's share of the descriptors. If the share
    exceeds `MAX_CONNECTIONS`, they may also use the excess.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    part = int(descriptors * share)
    return max(min(_MOST_REJECTED, part // 8 + max(part - MAX_CONNECTIONS, 0)), 1)


class Connected:
    """A new connection, held as a descriptor.

    The socket object is created only when it is needed, because that takes as long as accepting
    the connection.
    """

    __slots__ = ("_local", "descriptor", "family", "peer")

    def __init__(
        self, descriptor: int, family: int, peer: Address, local: Address | None = None
    ) -> None:
        """`local` is the local address, if the listening socket has a single address."""
        self.descriptor, self.family, self.peer, self._local = descriptor, family, peer, local

    @property
    def local(self) -> Address:
        """Return the local address. Raises `OSError` if the connection is closed."""
        if self._local is None:
            opened = self._opened()
            try:
                self._local = opened.getsockname()
            finally:
                opened.detach()
        return self._local

    @property
    def user(self) -> int:
        """Return the user at the other end of a Unix socket. Raises `OSError`."""
        opened = self._opened()
        try:
            peer_credentials = opened.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size
            )
        finally:
            opened.detach()
        return int(_PEERCRED.unpack(peer_credentials)[1])

    def take(self) -> socket.socket:
        """Return the connection as a socket object, which then owns the descriptor."""
        opened = self._opened()
        opened.setblocking(False)
        return opened

    def close(self) -> None:
        """Close the connection, unless `take` has returned it."""
        os.close(self.descriptor)

    def _opened(self) -> socket.socket:
        return socket.socket(self.family, socket.SOCK_STREAM, 0, self.descriptor)


def _user_of_unix(connected: Connected) -> Client | None:
    try:
        return Client(f"user {connected.user}", is_single=False)
    except OSError:
        return None


class Admission:
    """The connections of one listener."""

    def __init__(self, config: Settings, share: Share, *, has_hosts: bool = False) -> None:
        """With `has_hosts`, each address is a host with many clients, such as a cluster host."""
        self._most, self._has_hosts = most_connections(share), has_hosts
        self._per_address = ("connections_per_address", config.connections_per_address)
        self._per_user = ("connections_per_user", config.connections_per_user)
        self._proxies = TrustedProxies(config.trusted_proxies)
        self._open: Counter[str] = Counter()
        self._number = 0
        self._explained: deque[float] = deque()  # start times of the newest explanations

        # Rejected connections that wait to be closed may use the remaining descriptors.
        self.most_rejected = most_rejected(share)

    def enter(self, client: Client) -> str:
        """Count a connection and return the name of its client, which `disconnect` expects later.

        Raises `TooMany`.
        """
        if not self.may_enter(client):
            raise self.rejection(client)
        self._number += 1
        self._open[client.name] += 1
        return client.name

    def disconnect(self, client: str) -> None:
        """Count a connection as ended."""
        self._number -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def may_enter(self, client: Client) -> bool:
        """Return whether a further connection of a client may be admitted."""
        if self._number >= self._most:
            return False
        _, limit = self._per_address if client.is_single else self._per_user
        # One client may use at most half of the connections, even if the setting allows more.
        return self._open[client.name] < min(limit or self._most, max(self._most // 2, 1))

    def rejection(self, client: Client) -> TooMany:
        """Return the reason why a further connection of a client may not be admitted."""
        if self._number >= self._most:
            return TooMany(
                f"the daemon has {self._most} connections, which is its limit; close some or retry later"
            )
        setting, limit = self._per_address if client.is_single else self._per_user
        return TooMany(
            f"{client.name} has {self._open[client.name]} connections, which is its limit "
            f"({setting} = {limit}); close some or retry later"
        )

    def clients(self, connections: Sequence["Connected"]) -> list[Client | None]:
        """Return the clients of connections; None for a connection that is closed.

        The kernel reports the users of many connections with few calls.
        """
        clients: list[Client | None] = [None] * len(connections)
        within: list[int] = []  # indexes of connections from this host
        pairs: list[tuple[Address, Address]] = []  # their remote and local addresses
        for index, connected in enumerate(connections):
            if connected.family == socket.AF_UNIX:
                clients[index] = _user_of_unix(connected)
                continue
            try:
                peer, local = connected.peer, connected.local
            except OSError:
                continue
            if _is_within(peer[0], local[0]):
                within.append(index)
                pairs.append((peer, local))
            else:
                clients[index] = self._of_address(_plain(peer[0]))
        users = owners(connections[within[0]].family, pairs) if within else []
        for index, user in zip(within, users, strict=True):
            clients[index] = _of_user(user)
        return clients

    def _of_address(self, address: IPv4Address | IPv6Address) -> Client:
        is_single = not self._has_hosts and not self._proxies.has(str(address))
        if isinstance(address, IPv6Address):
            return Client(str(ip_network((address, _OWN_NETWORK), strict=False)), is_single)
        return Client(str(address), is_single)

    def may_explain(self) -> bool:
        """Return whether the reason for a rejection may be sent; if so, count it as sent.

        Sending it takes ten times as long as closing the connection.
        """
        now = trio.current_time()
        while self._explained and self._explained[0] <= now - _LINGER:
            self._explained.popleft()
        if len(self._explained) >= _MAX_LINGERING:
            return False
        self._explained.append(now)
        return True

    async def explain(self, connected: socket.socket, why: str) -> None:
        """Send the reason for a rejection, and close the connection."""
        try:
            with suppress(OSError):  # the client has disconnected
                async with _stream(connected) as stream:
                    await _reject(stream, why)
        finally:
            connected.close()


async def _reject(stream: trio.SocketStream, why: str) -> None:
    """Send the rejection, and read for a short time.

    Closing a connection with unread data resets it, and the rejection would be lost.
    """
    body = f"{why}\n".encode()
    head = (
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    # A client that has gone needs no rejection.
    with trio.move_on_after(_LINGER), suppress(trio.BrokenResourceError):
        send_now(stream, head.encode() + body)
        await stream.send_eof()
        while await stream.receive_some(4096):
            pass


@lru_cache(maxsize=1024)
def _of_user(user: int | None) -> Client:
    """Return the client for a user of this host. `user` is None if the kernel does not know it."""
    return Client("this host" if user is None else f"user {user}", is_single=False)


@lru_cache(maxsize=1024)
def _is_within(peer: str, local: str) -> bool:
    """Return whether both ends of a connection, given by their addresses, are on this host."""
    address = _plain(peer)
    return address.is_loopback or address == _plain(local)


@lru_cache(maxsize=1024)
def _plain(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def owners(family: int, pairs: Sequence[tuple[Address, Address]]) -> list[int | None]:
    """Return the users of the other ends of connections within this host.

    A pair is the remote address and the local address of a connection. The result contains None for
    a pair if no process has the other end open, or if the kernel does not report the user. A query
    takes 5 µs for any number of open connections. The alternative, /proc/net/tcp, would have to be
    read completely.
    """
    users: list[int | None] = []
    for start in range(0, len(pairs), _QUESTIONS):
        part = pairs[start : start + _QUESTIONS]
        try:
            kernel = _kernel()
        except OSError:
            return [None] * len(pairs)
        try:
            users.extend(_answers(kernel, family, part))
        except OSError:  # the next question opens another socket
            _kernel.cache_clear()
            atexit.unregister(kernel.close)
            kernel.close()
            users.extend([None] * len(part))
    return users


_NUMBERS = count(1)


@cache
def _kernel() -> socket.socket:
    """Return the socket on which the kernel answers queries about connections. Raises `OSError`."""
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
    kernel = socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG)
    atexit.register(kernel.close)
    return kernel


def _answers(
    kernel: socket.socket, family: int, pairs: Sequence[tuple[Address, Address]]
) -> list[int | None]:
    """Return the kernel's answers to one message with queries. Raises `OSError`."""
    number = next(_NUMBERS) % 2**32
    start = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 2**32 - 1)
    size = _HEADER.size + len(start) + _PORTS.size + 2 * _ADDRESS + len(_ANYWHERE)
    head = _HEADER.pack(size, _BY_FAMILY, _REQUEST, number, 0) + start
    questions = [
        head + _PORTS.pack(peer[1], local[1]) + _addresses(peer[0], local[0])
        for peer, local in pairs
    ]
    kernel.send(b"".join(questions))  # the kernel answers before this returns, in the same order
    users: list[int | None] = []
    while len(users) < len(pairs):
        answer = kernel.recv(_MESSAGE)
        _, kind, _, answered, _ = _HEADER.unpack_from(answer)
        if answered != number:
            continue  # an answer to an earlier message
        user = None
        if kind == _BY_FAMILY:
            uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
            user = uid if inode else None  # without an inode, its process has closed it
        users.append(user)
    return users


@lru_cache(maxsize=1024)
def _addresses(peer: str, local: str) -> bytes:
    """Return the end of a query to the kernel, which has both addresses of a connection."""
    return _packed(peer) + _packed(local) + _ANYWHERE


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address.partition("%")[0]).ljust(_ADDRESS, b"\0")


# --- accepting ---


class LogRateLimiter:
    """A rate limit for log warnings on one subject: one line per minute."""

    def __init__(self, matter: str) -> None:
        self._matter = matter
        self._next = -float("inf")
        self._untold = 0

    def warn(self, reason: Callable[..., object], *args: object) -> None:
        """Log a warning with the number of suppressed warnings, at most once a minute.

        `reason` returns the reason when it is called with `args`.
        """
        now = trio.current_time()
        if now < self._next:
            self._untold += 1
            return
        log.warning(
            "%s (%s more since the last line): %s", self._matter, self._untold, reason(*args)
        )
        self._next, self._untold = now + _APART, 0


Serve = Callable[[Stream, str], Awaitable[None]]  # arguments: a stream, and its client


class Acceptor:
    """The connections that a listening socket accepts, and those that it rejects.

    New connections wait in the kernel's queue, so all of them are accepted before the first one is
    served or closed. Then clients take turns: a client with many new connections delays no other.
    `wrap` adds the encryption. With `explains`, rejected clients receive the reason. An encrypted
    connection has no handshake yet, so it is closed without a reason.
    """

    def __init__(
        self,
        listening: socket.socket,
        admission: Admission,
        serve: Serve,
        wrap: Callable[[trio.SocketStream], Stream],
        *,
        explains: bool = True,
    ) -> None:
        self._listening, self._admission = listening, admission
        self._serve, self._wrap, self._explains = serve, wrap, explains
        self._admitted: OrderedDict[str, deque[Connected]] = OrderedDict()
        self._rejected: deque[Connected] = deque()
        self._errors = LogRateLimiter("a connection is waiting, because it cannot be accepted")
        self._rejections = LogRateLimiter("a connection was rejected")

    async def run(self, connections: trio.Nursery) -> None:
        """Accept connections until cancelled."""
        try:
            while True:
                if self._admitted or self._rejected:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._listening)
                accepted, error = _accepted(self._listening)
                clients = self._admission.clients(accepted)
                for connected, client in zip(accepted, clients, strict=True):
                    self._take(connected, client, connections)
                self._begin(connections)
                if not accepted or len(self._rejected) > self._admission.most_rejected:
                    _close(self._rejected)
                if error is not None:
                    self._errors.warn(str, error.strerror)
                    await trio.sleep(PAUSE)
        finally:
            # at the shutdown of the daemon, their requests are still answered
            while self._admitted:
                self._begin(connections)
            for connected in self._rejected:
                connected.close()

    def _take(self, connected: Connected, client: Client | None, connections: trio.Nursery) -> None:
        """Admit a connection, or reject it."""
        if client is None:  # it has disconnected
            connected.close()
            return
        if self._admission.may_enter(client):
            name = self._admission.enter(client)
            self._admitted.setdefault(name, deque()).append(connected)
            return
        self._rejections.warn(self._admission.rejection, client)
        if self._explains and self._admission.may_explain():
            why = str(self._admission.rejection(client))
            connections.start_soon(self._admission.explain, connected.take(), why)
        else:
            self._rejected.append(connected)

    def _begin(self, connections: trio.Nursery) -> None:
        """Begin to serve a few admitted connections; clients take turns."""
        for _ in range(_BEGIN):
            if not self._admitted:
                return
            client, waiting = self._admitted.popitem(last=False)
            connections.start_soon(self._served, waiting.popleft().take(), client)
            if waiting:
                self._admitted[client] = waiting

    async def _served(self, connected: socket.socket, client: str) -> None:
        try:
            with suppress(OSError):  # the client has disconnected
                stream = self._wrap(_stream(connected))
                try:
                    await self._serve(stream, client)
                finally:
                    await trio.aclose_forcefully(stream)
        finally:
            connected.close()
            self._admission.disconnect(client)


def _stream(connected: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(connected))


def _accepted(listening: socket.socket) -> tuple[list[Connected], OSError | None]:
    """Accept connections that are already waiting in the kernel's queue; never wait for more.

    Return the accepted connections. If an error stopped the function, also return the error,
    otherwise None.
    """
    connections: list[Connected] = []
    family, local = listening.family, _single_address(listening)
    # `accept` also creates an object, and takes three times as long.
    accept: Callable[[], tuple[int, Address]] = listening._accept  # type: ignore[attr-defined]  # noqa: SLF001  # see above
    until = time.thread_time_ns() + _SLICE
    while len(connections) < _BATCH and time.thread_time_ns() < until:
        try:
            descriptor, peer = accept()
        except BlockingIOError:
            break
        except ConnectionAbortedError:
            continue
        except OSError as error:
            return connections, error
        connections.append(Connected(descriptor, family, peer, local))
    return connections, None


def _single_address(listening: socket.socket) -> Address | None:
    """Return the local address of all connections; None if the socket listens on all addresses."""
    if listening.family == socket.AF_UNIX:
        return None
    address: Address = listening.getsockname()
    return None if _plain(address[0]).is_unspecified else address


def _close(rejected: deque[Connected]) -> None:
    """Close rejected connections, the oldest first, for a limited time."""
    until = time.thread_time_ns() + _SLICE
    while rejected and time.thread_time_ns() < until:
        rejected.popleft().close()
