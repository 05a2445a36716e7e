"""The HTTP client: one connection that is kept, and errors that say what to do.

It uses what Python brings along, because a short command must start fast. A read that finds the
kept connection closed is repeated on a new one; nothing that changes state is ever sent twice.
"""

import base64
import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, Self, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from storage.errors import Invalid, StewardError

T = TypeVar("T")
Value = str | int | bool
Query = Mapping[str, Value]

CONNECT_WITHIN = 10.0  # seconds
WAIT = 60  # seconds that a blocking query asks for; the daemon adds up to a sixteenth
ANSWER_WITHIN = 90.0  # seconds


class Unreachable(StewardError):
    """The daemon cannot be reached, or does not speak as it should."""


class Rejected(StewardError):
    """The daemon's answer is an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(_explained(status, text))
        self.status = status


def _explained(status: int, text: str) -> str:
    said = _said(text).rstrip() or http.client.responses.get(status, "")
    if status == http.client.FORBIDDEN:
        said += "; name a token that may do this with --token or STEWARD_TOKEN"
    return f"{said} (status {status})"


class _Errors(msgspec.Struct):
    errors: list[str]


def _said(text: str) -> str:
    """Return what an error says; the secrets side says it in a list."""
    if not text.startswith("{"):
        return text
    try:
        said = msgspec.json.decode(text, type=_Errors).errors
    except msgspec.DecodeError:
        return text
    return "; ".join(one.removeprefix("1 error occurred:\n\t* ").rstrip() for one in said)


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Where the daemon is, and who asks."""

    address: str
    token: str = ""
    namespace: str = ""
    region: str = ""
    http_auth: str = ""  # user:password, for a proxy in front of the daemon
    ca_cert: str = ""
    ca_path: str = ""
    client_cert: str = ""
    client_key: str = ""
    tls_server_name: str = ""
    tls_skip_verify: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The body of an answer and the state's index that it shows."""

    body: bytes
    index: int

    def decode(self, kind: type[T]) -> T:
        """Return the body as what it should be. Raises `Unreachable` when it is not."""
        return decode(self.body, kind)


def decode(body: bytes, kind: type[T]) -> T:
    """Return JSON as what it should be. Raises `Unreachable` when it is not."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Unreachable(
            f"the answer is not what a Steward daemon sends ({error}); "
            "look whether --address or STEWARD_ADDR names one of this version"
        ) from error


def segment(text: str) -> str:
    """Return an identifier in the form that stands in a path."""
    return quote(text, safe="")


class Client:
    """Asks one daemon. Close it, or use it in a `with` block.

    An answer that has not begun after `answer_within` seconds is `Unreachable`.
    """

    def __init__(self, connection: Connection, *, answer_within: float = ANSWER_WITHIN) -> None:
        self.connection = connection
        self._answer_within = answer_within
        self._target = parse_address(connection.address)
        self._http: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        if self._http is not None:
            self._http.close()
            self._http = None

    @property
    def namespace(self) -> str:
        """Return the namespace that was asked for; empty if none was."""
        return self.connection.namespace

    def read(self, path: str, /, **query: Value) -> Answer:
        """Return what stands at a path. Raises `Unreachable`, `Rejected`."""
        return self._answer("GET", path, query)

    def newer(self, path: str, after: int, /, **query: Value) -> Answer:
        """Wait until what stands at a path is newer than the index `after`, and return it.

        The wait ends after a minute with what is there then.
        """
        # 0 would not wait at all.
        return self._answer("GET", path, {**query, "index": max(after, 1), "wait": f"{WAIT}s"})

    def fetch(self, path: str, kind: type[T], /, **query: Value) -> T:
        """Return what stands at a path, decoded."""
        return self.read(path, **query).decode(kind)

    def call(self, method: str, path: str, body: bytes | None, /, **query: Value) -> Answer:
        """Make any call, with a body that is ready."""
        return self._answer(method, path, query, body)

    def send(self, method: str, path: str, body: object = None, /, **query: Value) -> Answer:
        """Change something. Raises `Unreachable`, `Rejected`."""
        encoded = None if body is None else msgspec.json.encode(body)
        return self._answer(method, path, query, encoded)

    def _answer(self, method: str, path: str, query: Query, body: bytes | None = None) -> Answer:
        with self._faults():
            response = self._respond(method, path, query, body)
            content = response.read()
        index = response.getheader("X-Service-Index") or response.getheader("X-Nomad-Index") or ""
        if response.status >= http.client.MULTIPLE_CHOICES:
            raise Rejected(response.status, content.decode(errors="replace"))
        return Answer(content, int(index) if index.isdecimal() else 0)

    @contextmanager
    def stream(self, path: str, /, **query: Value) -> Iterator[Iterator[bytes]]:
        """Give the pieces of an answer as they arrive, however long that takes."""
        with self._faults():
            response = self._respond("GET", path, query, None)
            if response.status >= http.client.MULTIPLE_CHOICES:
                raise Rejected(response.status, response.read().decode(errors="replace"))
            if self._http is not None and self._http.sock is not None:
                self._http.sock.settimeout(None)
        try:
            yield self._pieces(response)
        finally:
            response.close()
            self.close()

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            with self._faults():
                piece = response.read1()
            if not piece:
                return
            yield piece

    def _respond(
        self, method: str, path: str, query: Query, body: bytes | None
    ) -> http.client.HTTPResponse:
        kept = self._http is not None
        try:
            return self._request(method, path, query, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            if not kept or method != "GET":
                raise
            return self._request(method, path, query, body)

    def _request(
        self, method: str, path: str, query: Query, body: bytes | None
    ) -> http.client.HTTPResponse:
        if self._http is None:
            self._http = self._connect()
        prefix = "" if self._target.scheme == "unix" else self._target.path.rstrip("/")
        url = f"{prefix}{path}"
        if pairs := self._query(query):
            url = f"{url}?{urlencode(pairs)}"
        self._http.request(method, url, body=body, headers=self.headers)
        return self._http.getresponse()

    def _query(self, query: Query) -> dict[str, str]:
        own = {"namespace": self.connection.namespace, "region": self.connection.region}
        pairs = {**own, **{name: _text(value) for name, value in query.items()}}
        return {name: value for name, value in pairs.items() if value}

    def socket_address(self, path: str) -> tuple[str, ssl.SSLContext | None]:
        """Return where a WebSocket for a path is opened, and the rules for its encryption."""
        secure = self._target.scheme == "https"
        where = f"{'wss' if secure else 'ws'}://{self._target.netloc}"
        return (
            f"{where}{self._target.path.rstrip('/')}{path}",
            _tls_context(self.connection) if secure else None,
        )

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that say who asks."""
        headers = {"Accept": "application/json"}
        if not self.connection.token.isprintable():
            raise Invalid("the token holds a line break or another character that no token has")
        if self.connection.token:
            headers["X-Service-Token"] = headers["X-Nomad-Token"] = self.connection.token
        if self.connection.http_auth:
            login = base64.b64encode(self.connection.http_auth.encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        return headers

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._target.hostname or "", self._target.port
        within = min(CONNECT_WITHIN, self._answer_within)
        connection: http.client.HTTPConnection
        if self._target.scheme == "unix":
            connection = _LocalHTTP(self._target.path, within)
        elif self._target.scheme == "https":
            context = _tls_context(self.connection)
            made = _NamedHTTPS(host, port, timeout=within, context=context)
            made.server_name = self.connection.tls_server_name
            connection = made
        else:
            connection = http.client.HTTPConnection(host, port, timeout=within)
        connection.connect()
        connection.sock.settimeout(self._answer_within)
        return connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn what can go wrong on the way into `Unreachable`."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._unreachable(error)

    def _unreachable(self, error: Exception) -> NoReturn:
        reason, remedy = _reason(error)
        raise Unreachable(
            f"cannot reach the daemon at {self.connection.address}: {reason}; {remedy}"
        ) from error


class _LocalHTTP(http.client.HTTPConnection):
    """A connection through a socket of this machine."""

    def __init__(self, path: str, within: float) -> None:
        super().__init__("localhost", timeout=within)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _NamedHTTPS(http.client.HTTPSConnection):
    """A connection that expects another name in the certificate than the address has."""

    server_name = ""
    _context: ssl.SSLContext

    def connect(self) -> None:
        if not self.server_name:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.server_name)


def parse_address(address: str) -> SplitResult:
    """Return an address in its parts. Raises `Invalid`."""
    given = urlsplit(address if "://" in address else f"http://{address}")
    example = "write it as http://HOST:PORT, https://HOST:PORT or unix:///PATH"
    if given.scheme == "unix":
        if given.netloc or not given.path:
            raise Invalid(f"address {address!r}: no absolute path; {example}")
        return given
    if given.scheme not in ("http", "https"):
        raise Invalid(f"address {address!r}: {given.scheme} is not supported; {example}")
    try:
        port = given.port
    except ValueError:
        raise Invalid(f"address {address!r}: the port is not a number; {example}") from None
    if not given.hostname or port == 0:
        raise Invalid(f"address {address!r}: {'port 0' if port == 0 else 'no host'}; {example}")
    return given


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tls_context(connection: Connection) -> ssl.SSLContext:
    """Return the rules for an encrypted connection. Raises `Invalid` for files that do not fit."""
    try:
        context = ssl.create_default_context(
            cafile=connection.ca_cert or None, capath=connection.ca_path or None
        )
        if connection.client_cert:
            context.load_cert_chain(connection.client_cert, connection.client_key or None)
    except OSError as error:  # ssl.SSLError is one
        files = (
            connection.ca_cert,
            connection.ca_path,
            connection.client_cert,
            connection.client_key,
        )
        named = ", ".join(filter(None, files))
        raise Invalid(f"cannot use the certificates in {named}: {error}") from error
    if connection.tls_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _reason(error: Exception) -> tuple[str, str]:
    """Return why a daemon cannot be reached, and what to do about it."""
    elsewhere = "name another address with --address or STEWARD_ADDR"
    match error:
        case ConnectionRefusedError():
            return "nothing listens there", f'start it with "steward agent", or {elsewhere}'
        case FileNotFoundError():
            return "there is no such socket", f'start it with "steward agent", or {elsewhere}'
        case PermissionError():
            return "you may not connect to it", f"ask as root, or {elsewhere}"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted ({error.verify_message})",
                "name its authority with --ca-cert or STEWARD_CACERT",
            )
        case ssl.SSLError():
            return f"no encrypted connection ({error.reason})", "look whether it is http:// there"
        case TimeoutError():
            return "no answer in time", f"look at its log, or {elsewhere}"
        case http.client.RemoteDisconnected() | http.client.IncompleteRead():
            return "it closed the connection", "look whether it still runs, and at its log"
        case http.client.HTTPException():
            return "what listens there does not speak HTTP", elsewhere
        case OSError():
            return error.strerror or str(error), elsewhere
        case _:
            return str(error), elsewhere
