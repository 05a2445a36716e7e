"""HTTP client with one persistent connection, and errors that name the fix.

It uses the standard library, because a short command must start fast. If the persistent connection
turns out to be closed, a read is repeated on a new connection. A request that changes state is
never sent twice.
"""

import base64
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, Self, TypeGuard, TypeVar, get_args, get_origin
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import click
import msgspec

from storage.errors import Invalid, StewardError

T = TypeVar("T")
# The errors of a decoder for bytes that are not JSON of the expected type, or are nested too
# deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONGEST_INDEX = 20  # digits of an index of 64 bits
Value = str | int | bool
Query = Mapping[str, Value]

CONNECT_WITHIN = 10.0  # seconds
WAIT = 60  # seconds that a blocking query requests; the daemon adds up to a sixteenth
ANSWER_WITHIN = 90.0  # seconds
RESTARTS_WITHIN = 60  # seconds; a daemon that migrates a large store takes longer
_PAUSE = 0.5  # seconds between two requests to a daemon that restarts


# Errors of a connection to a daemon that ends, or that has not started yet.
_OF_A_RESTART = (ConnectionError, FileNotFoundError, http.client.IncompleteRead)


class DaemonUnreachable(StewardError):
    """The daemon cannot be reached, or its response is not valid."""


def is_of_a_restart(error: DaemonUnreachable) -> bool:
    """Return whether the daemon may only be restarting."""
    return isinstance(error.__cause__, _OF_A_RESTART)


# Statuses shown without their number: they mean an error of the caller. Nomad's API uses 500
# for many of these errors.
_OF_THE_CALLER = frozenset({400, 401, 403, 404, 405, 409, 413, 422, 429, 500})
_FAULT = "internal error"
_API = "/v1/"
_PAGE_OF_API = "/v1/openapi"  # the description of the API for people
_POLICY, _HARD = " is denied: policy ", "(hard-mandatory)"  # of job policies
_COUNT = re.compile(r"\b\d+ errors? occurred:")
_RPC = re.compile(r"\ARPC Error:: \d+,")  # of Nomad; it says nothing to a user


class RequestRejected(StewardError):
    """The daemon returned an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(_explained(status, text))
        self.status = status

    @property
    def is_denied(self) -> bool:
        """Return whether the token lacks a permission."""
        return self.status == http.client.FORBIDDEN


def _explained(status: int, text: str) -> str:
    message = flat(_RPC.sub("", _error_message(text))).rstrip()
    if not message or message.startswith(_FAULT) or status not in _OF_THE_CALLER:
        return f"{message or http.client.responses.get(status, '')} (status {status})"
    if status == http.client.FORBIDDEN and _POLICY in message:
        if _HARD not in message:
            message += "; with policy-override, a token may use --policy-override"
    elif status == http.client.FORBIDDEN:
        message += "; use --token or STEWARD_TOKEN to pass a token with this permission"
    return message


def flat(text: str) -> str:
    """Return the errors in a text as lines, without the counts and levels of Vault's format."""
    if not _COUNT.search(text):
        return text
    messages, heading = [], ""
    for line in text.splitlines():
        message = line.strip().removeprefix("* ")
        if _COUNT.search(message):  # the heading of the next lines
            heading = _COUNT.sub("", message).rstrip(": ,").removesuffix(" validation failed")
        elif message:
            messages.append(f"{heading}: {message}" if heading else message)
    return messages[0] if len(messages) == 1 else "\n".join(f"- {line}" for line in messages)


class _Errors(msgspec.Struct):
    errors: list[str]


def _error_message(text: str) -> str:
    """Return the message of an error response; the Vault API sends a list of messages."""
    if not text.startswith("{"):
        return text
    try:
        errors = msgspec.json.decode(text, type=_Errors).errors
    except UNREADABLE:
        return text
    return "; ".join(error.removeprefix("1 error occurred:\n\t* ").rstrip() for error in errors)


class HttpConnection(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the daemon, and the caller's credentials."""

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


class _Warnings(msgspec.Struct, frozen=True):
    warnings: list[str] | None = None


class ClientResponse(msgspec.Struct, frozen=True):
    """The body of a response, and its index. `request` is the method and path of the request.

    `remarks` are the warnings in the header. They are set if the body has no field for warnings.
    """

    body: bytes
    index: int
    request: str = ""
    remarks: str = ""

    def decode(self, kind: type[T]) -> T:
        """Return the decoded body. Raises `DaemonUnreachable` if it does not have this type."""
        return decode(self.body, kind, self.request)

    def checked(self, kind: type[T]) -> bytes:
        """Return the body. Raises `DaemonUnreachable` if it does not have this type."""
        decode(self.body, kind, self.request)
        return self.body

    def warnings(self) -> str:
        """Return the warnings of a response without content.

        Raises `DaemonUnreachable` unless the response is empty or an object.
        """
        self.check_content()
        body = self.body or b"{}"
        listed = decode(body, _Warnings, self.request, may_be_empty=True).warnings
        return "; ".join(filter(None, [self.remarks, *(listed or ())]))

    def check_content(self) -> None:
        """Raise `DaemonUnreachable` unless the body is empty or an object."""
        if self.body:
            self.decode(dict[str, msgspec.Raw])

    def object_body(self, *needed: str) -> bytes:
        """Return the body. Raises `DaemonUnreachable` unless it is an object with these fields."""
        fields = self.decode(dict[str, msgspec.Raw])
        if not fields or any(name not in fields for name in needed):
            reason = f"Object lacks a field: {', '.join(needed)}" if needed else "Object is empty"
            raise _unexpected(self.request, reason)
        return self.body


def decode(body: bytes, kind: type[T], request: str = "", *, may_be_empty: bool = False) -> T:
    """Return decoded JSON. Raises `DaemonUnreachable` if it does not have this type.

    A body without any field of the record, such as `{}`, is an error too, unless `may_be_empty`.
    """
    try:
        decoded = msgspec.json.decode(body, type=kind)
        if not may_be_empty:
            _check_fields(body, kind)
    except UNREADABLE as error:
        raise _unexpected(request, str(error)) from error
    return decoded


def check_document(body: bytes, request: str = "") -> None:
    """Raise `DaemonUnreachable` unless a body is a JSON object or array."""
    try:
        document = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise _unexpected(request, str(error)) from error
    if not isinstance(document, dict | list):
        raise _unexpected(request, "Expected `object` or `array`")


def _check_fields(body: bytes, kind: object) -> None:
    """Raise `msgspec.DecodeError` if the first object of a body has none of the record's fields."""
    if get_origin(kind) in (list, tuple):
        element = get_args(kind)[0]
        if _is_record(element) and (items := msgspec.json.decode(body, type=list[msgspec.Raw])):
            _check_fields(bytes(items[0]), element)
    elif _is_record(kind):
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        field_names = [field.encode_name for field in msgspec.structs.fields(kind)]
        if not fields.keys() & field_names:
            raise msgspec.ValidationError(
                f"Object has none of the fields {', '.join(field_names[:3])}"
            )


def _is_record(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _unexpected(request: str, reason: str) -> DaemonUnreachable:
    named = f"the response to {request}" if request else "the response"
    return DaemonUnreachable(
        f"{named} does not come from a Steward daemon ({reason}); "
        "check that --address or STEWARD_ADDR names a daemon of this version"
    )


def _is_page(response: http.client.HTTPResponse) -> bool:
    """Return whether a response is a web page, such as the login of a proxy."""
    kind: str = response.getheader("Content-Type") or ""
    return kind.partition(";")[0].strip().lower() == "text/html"


def segment(text: str) -> str:
    """Return an identifier, encoded for a path."""
    return quote(text, safe="")


class ApiClient:
    """A client of one daemon. Close it, or use it in a `with` block.

    If no response has begun after `answer_within` seconds, requests raise `DaemonUnreachable`.
    After a call of `await_restarts` or `newer`, GET requests wait for a daemon that restarts,
    because a restart does not end the tasks that the caller waits for.
    """

    def __init__(self, connection: HttpConnection, *, answer_within: float = ANSWER_WITHIN) -> None:
        self.connection = connection
        self._answer_within = answer_within
        self._target = parse_address(connection.address)
        self._http: http.client.HTTPConnection | None = None
        self._awaits_restarts = self._is_quiet = False
        self.has_awaited_restart = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            self._http.close()
            self._http = None

    @property
    def namespace(self) -> str:
        """Return the namespace from the options or the environment, or an empty string."""
        return self.connection.namespace

    def await_restarts(self, *, is_quiet: bool = False) -> None:
        """Let later GET requests wait while the daemon restarts.

        Unless `is_quiet`, standard error then shows that the client waits.
        """
        self._awaits_restarts, self._is_quiet = True, is_quiet

    def read(self, path: str, /, **query: Value) -> ClientResponse:
        """Return the response to a GET. Raises `DaemonUnreachable`, `RequestRejected`."""
        return self._answer("GET", path, query)

    def newer(self, path: str, after: int, /, **query: Value) -> ClientResponse:
        """Wait until the object at a path is newer than the index `after`; return the object.

        The wait ends after a minute, even if the object has not changed.
        """
        self.await_restarts()
        # Index 0 would not wait.
        return self._answer("GET", path, {**query, "index": max(after, 1), "wait": f"{WAIT}s"})

    def fetch(self, path: str, kind: type[T], /, **query: Value) -> T:
        """Return the decoded response to a GET."""
        return self.read(path, **query).decode(kind)

    def call(self, method: str, path: str, body: bytes | None, /, **query: Value) -> ClientResponse:
        """Send any request with an encoded body."""
        return self._answer(method, path, query, body)

    def send(
        self, method: str, path: str, body: object = None, /, **query: Value
    ) -> ClientResponse:
        """Send a request that changes state. Raises `DaemonUnreachable`, `RequestRejected`."""
        encoded = None if body is None else msgspec.json.encode(body)
        return self._answer(method, path, query, encoded)

    def act(self, method: str, path: str, body: object = None, /, **query: Value) -> str:
        """Send a request that changes state, and whose response has no content.

        Return the warnings of the response. Raises `DaemonUnreachable` unless the response is
        empty or an object.
        """
        return self.send(method, path, body, **query).warnings()

    def _answer(
        self, method: str, path: str, query: Query, body: bytes | None = None
    ) -> ClientResponse:

        def exchange() -> tuple[http.client.HTTPResponse, bytes]:
            response = self._respond(method, path, query, body)
            return response, response.read()

        response, content = self._attempt(method, exchange)
        index = response.getheader("X-Service-Index") or response.getheader("X-Nomad-Index") or ""
        if response.status >= http.client.MULTIPLE_CHOICES:
            raise RequestRejected(response.status, content.decode(errors="replace"))
        if _is_page(response) and path.startswith(_API) and not path.startswith(_PAGE_OF_API):
            raise DaemonUnreachable(
                f"{self.connection.address} answers {method} {path} with a web page, so the "
                "request may have had no effect; check whether a proxy asks for a login, and that "
                "--address or STEWARD_ADDR names a daemon"
            )
        number = int(index) if index.isdecimal() and len(index) <= _LONGEST_INDEX else 0
        remarks = response.getheader("X-Steward-Warning") or ""
        return ClientResponse(content, number, f"{method} {path}", remarks)

    def _attempt(self, method: str, exchange: Callable[[], T]) -> T:
        """Return the result of an exchange, which is repeated while the daemon restarts."""
        deadline = 0.0
        while True:
            try:
                with self._faults():
                    return exchange()
            except DaemonUnreachable as error:
                if not (self._awaits_restarts and method == "GET" and is_of_a_restart(error)):
                    raise
                if not deadline:
                    self.has_awaited_restart = True
                    deadline = time.monotonic() + RESTARTS_WITHIN
                    self._report_wait()
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE)  # the client is synchronous, and the daemon cannot report its start

    def _report_wait(self) -> None:
        if not self._is_quiet:
            address, seconds = self.connection.address, RESTARTS_WITHIN
            wait = f"waiting up to {seconds} s for its restart"
            click.echo(f"the daemon at {address} does not answer; {wait}", err=True)

    @contextmanager
    def stream(self, path: str, /, **query: Value) -> Iterator[Iterator[bytes]]:
        """Yield the chunks of a response as they arrive, without a time limit."""
        with self._streamed("GET", path, query, None) as chunks:
            yield chunks

    @contextmanager
    def stream_answers(
        self, path: str, body: bytes, /, **query: Value
    ) -> Iterator[Iterator[bytes]]:
        """Post an encoded body, and yield the chunks of the response."""
        with self._streamed("POST", path, query, body) as chunks:
            yield chunks

    @contextmanager
    def _streamed(
        self, method: str, path: str, query: Query, body: bytes | None
    ) -> Iterator[Iterator[bytes]]:
        response = self._attempt(method, partial(self._respond, method, path, query, body))
        with self._faults():
            if response.status >= http.client.MULTIPLE_CHOICES:
                raise RequestRejected(response.status, response.read().decode(errors="replace"))
            if self._http is not None and self._http.sock is not None:
                self._http.sock.settimeout(None)
        try:
            yield self._read_chunks(response)
        finally:
            response.close()
            self.close()

    def _read_chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            with self._faults():
                chunk = response.read1()
            if not chunk:
                return
            yield chunk

    def _respond(
        self, method: str, path: str, query: Query, body: bytes | None
    ) -> http.client.HTTPResponse:
        is_kept_alive = self._http is not None
        try:
            return self._request(method, path, query, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            if not is_kept_alive or method != "GET":
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

    @property
    def local_socket(self) -> str:
        """Return the path of the daemon's Unix socket; empty for an address on the network."""
        return self._target.path if self._target.scheme == "unix" else ""

    def socket_address(self, path: str) -> tuple[str, ssl.SSLContext | None]:
        """Return the WebSocket URL of a path on the network, and its TLS settings."""
        secure = self._target.scheme == "https"
        where = f"{'wss' if secure else 'ws'}://{self._target.netloc}"
        return (
            f"{where}{self._target.path.rstrip('/')}{path}",
            _tls_context(self.connection) if secure else None,
        )

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers with the caller's credentials."""
        headers = {"Accept": "application/json"}
        if not (self.connection.token.isprintable() and self.connection.token.isascii()):
            raise Invalid("the token contains a line break or another invalid character")
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
            https_connection = _NamedHTTPS(host, port, timeout=within, context=context)
            https_connection.server_name = self.connection.tls_server_name
            connection = https_connection
        else:
            connection = http.client.HTTPConnection(host, port, timeout=within)
        try:
            connection.connect()
        except UnicodeError as error:  # the host name cannot be encoded
            raise OSError("its host name has a label that is empty or too long") from error
        connection.sock.settimeout(self._answer_within)
        return connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Convert connection errors to `DaemonUnreachable`."""
        try:
            yield
        except http.client.InvalidURL as error:
            self.close()
            raise Invalid(
                f"the path or the address has a character that needs %XX: {error}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._unreachable(error)

    def _unreachable(self, error: Exception) -> NoReturn:
        reason, remedy = _reason(error)
        raise DaemonUnreachable(
            f"cannot reach the daemon at {self.connection.address}: {reason}; {remedy}"
        ) from error


class _LocalHTTP(http.client.HTTPConnection):
    """A connection through a Unix socket."""

    def __init__(self, path: str, within: float) -> None:
        super().__init__("localhost", timeout=within)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _NamedHTTPS(http.client.HTTPSConnection):
    """An HTTPS connection. `server_name`, if set, replaces the address's host name for TLS."""

    server_name = ""
    _context: ssl.SSLContext

    def connect(self) -> None:
        if not self.server_name:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.server_name)


def parse_address(address: str) -> SplitResult:
    """Return the parts of an address. Raises `Invalid`."""
    example = "write it as http://HOST:PORT, https://HOST:PORT or unix:///PATH"
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
    except ValueError as error:
        raise Invalid(f"address {address!r}: {error}; {example}") from None
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise Invalid(f"address {address!r}: no absolute path; {example}")
        return parts
    if parts.scheme not in ("http", "https"):
        raise Invalid(f"address {address!r}: {parts.scheme} is not supported; {example}")
    try:
        port = parts.port
    except ValueError:
        text = parts.netloc.rpartition(":")[2]
        if not text.removeprefix("-").isdecimal():
            raise Invalid(f"address {address!r}: the port is not a number; {example}") from None
        port = 0
    if port == 0:
        raise Invalid(f"address {address!r}: the port must be from 1 to 65535; {example}")
    if not parts.hostname:
        raise Invalid(f"address {address!r}: no host; {example}")
    return parts


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tls_context(connection: HttpConnection) -> ssl.SSLContext:
    """Return the TLS settings of a connection. Raises `Invalid` for unusable files."""
    try:
        context = ssl.create_default_context(
            cafile=connection.ca_cert or None, capath=connection.ca_path or None
        )
        if connection.client_cert:
            context.load_cert_chain(connection.client_cert, connection.client_key or None)
    except OSError as error:  # includes ssl.SSLError
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


_OF_AN_UNKNOWN_AUTHORITY = "name its CA certificate with --ca-cert or STEWARD_CACERT"
_OF_ANOTHER_NAME = (
    "use a name of the certificate in the address, or pass the name with --tls-server-name"
)
_OF_ITS_FORM = "replace the certificate of the daemon, or that of its authority"
_CERTIFICATE_REMEDIES = {  # by OpenSSL's numbers in openssl/x509_vfy.h
    **dict.fromkeys((2, 18, 19, 20, 21, 27), _OF_AN_UNKNOWN_AUTHORITY),
    9: "check the clocks of this host and of the daemon's host, or replace its certificate",
    10: "renew the expired certificate and reload the daemon, or correct the clock of this host",
    23: "replace its certificate, because the authority has revoked it",
    62: _OF_ANOTHER_NAME,
    64: _OF_ANOTHER_NAME,
}
_ALERT = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_ALERT_(\w+)")  # the reason that the daemon sent


def _tls_reason(reason: str) -> tuple[str, str]:
    """Return an error of TLS, and how to fix it. `reason` is OpenSSL's name of the error."""
    words = reason.lower().replace("_", " ") or "no reason given"
    alert = _ALERT.fullmatch(reason)
    if alert and ("CERTIFICATE" in alert[1] or alert[1] == "UNKNOWN_CA"):
        words = alert[1].lower().replace("_", " ")
        remedy = (
            "pass a valid certificate and its key with --client-cert and --client-key, or "
            "STEWARD_CLIENT_CERT and STEWARD_CLIENT_KEY"
        )
        return f"it refuses the certificate of this client ({words})", remedy
    if alert:
        return f"TLS failed ({words})", "check the log of the daemon"
    return f"TLS failed ({words})", "check whether the address needs http://"


def _reason(error: Exception) -> tuple[str, str]:
    """Return why a daemon cannot be reached, and how to fix that."""
    elsewhere = "name another address with --address or STEWARD_ADDR"
    match error:
        case ConnectionRefusedError():
            return "nothing listens there", f'start it with "steward agent", or {elsewhere}'
        case FileNotFoundError():
            return "the socket does not exist", f'start it with "steward agent", or {elsewhere}'
        case PermissionError():
            return "permission denied", f"run the command as root, or {elsewhere}"
        case ssl.SSLCertVerificationError():
            message = error.verify_message.rstrip(".")
            remedy = _CERTIFICATE_REMEDIES.get(error.verify_code, _OF_ITS_FORM)
            return f"its certificate is not trusted ({message})", remedy
        case ssl.SSLError():
            return _tls_reason(error.reason or "")
        case TimeoutError():
            return "no response in time", f"check its log, or {elsewhere}"
        case http.client.RemoteDisconnected() | http.client.IncompleteRead():
            return "it closed the connection", "check whether it still runs, and check its log"
        case http.client.HTTPException():
            return "the server there does not speak HTTP", elsewhere
        case OSError():
            return error.strerror or str(error), elsewhere
        case _:
            return str(error), elsewhere
