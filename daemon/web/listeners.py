"""Listening sockets: TCP with or without TLS, and Unix sockets.

The kernel identifies the user behind a Unix socket. Root and the members of a configured group are
operators and need no token. Other users need one.
"""

import grp
import logging
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.config.settings import Settings
from storage.errors import Invalid, StewardError

if TYPE_CHECKING:
    from daemon.web.certificate_files import CertificateFile, ServerContext

log = logging.getLogger("steward.web")

_BACKLOG = 65_535  # the kernel limits it to net.core.somaxconn; a client beyond it waits 1 s
_PEERCRED = struct.Struct("3i")  # pid, uid, gid
_SO_PEERGROUPS = 59  # linux/socket.h
_MOST_GROUPS = 1024  # bytes of the group list
_LONGEST_PATH = 107  # bytes; the kernel's limit for the path of a socket
_OPEN_TO_OWNER = 0o600
_OPEN_TO_GROUP = 0o660
_OPEN_TO_ALL = 0o666


class ListenError(StewardError):
    """The address cannot be bound."""


class PeerAddress(msgspec.Struct, frozen=True):
    """The user at the other end of a Unix socket. If `is_operator` is true, they need no token."""

    uid: int
    is_operator: bool


class ListeningSockets(msgspec.Struct, frozen=True, kw_only=True):
    """All bound sockets of the daemon, with the TLS contexts of those that use TLS.

    `group` is the group of operators. `public` serves public documents, and `wrappers` serves
    cluster hosts.
    """

    port: socket.socket
    tasks: socket.socket
    context: "ServerContext | None" = None
    operators: socket.socket | None = None
    group: int | None = None
    public: socket.socket | None = None
    public_context: "ServerContext | None" = None
    wrappers: socket.socket | None = None
    wrappers_context: "ServerContext | None" = None


@contextmanager
def open_listening_sockets(
    config: Settings, inherited: Sequence[socket.socket] = ()
) -> Iterator[ListeningSockets]:
    """Open the sockets of the settings; an inherited TCP socket is used for the port.

    No request is served yet. Raises `ListenError`, `Invalid`.
    """
    context = tls_context(config)
    operators = group = public = public_context = wrappers = wrappers_context = None
    with ExitStack() as sockets:
        for passed_socket in inherited:
            sockets.enter_context(passed_socket)
        port = _at_port(config, inherited) or sockets.enter_context(
            listen(config.bind, config.port)
        )
        if config.socket_path is not None:
            group = group_id(config.operator_group) if config.operator_group else None
            operators = sockets.enter_context(listen_here(config.socket_path, group=group))
        tasks = sockets.enter_context(listen_here(config.task_socket_path, is_open=True))
        if config.pools:
            wrappers_context = tls_context(config.of_wrappers)
            wrappers = sockets.enter_context(listen(config.wrapper_host, config.wrapper_port))
        if config.issuer_bind:
            public_context = context  # the same object, so that a reload renews both
            public = sockets.enter_context(listen(config.issuer_bind, config.issuer_port))
        yield ListeningSockets(
            port=port,
            tasks=tasks,
            context=context,
            operators=operators,
            group=group,
            public=public,
            public_context=public_context,
            wrappers=wrappers,
            wrappers_context=wrappers_context,
        )


def _at_port(config: Settings, sockets: Sequence[socket.socket]) -> socket.socket | None:
    address, matching = (config.bind, config.port), None
    for passed_socket in sockets:
        if passed_socket.getsockname()[:2] == address:
            matching = passed_socket
        else:
            log.warning(
                "ignored the passed socket at %s: to use it, set bind and port to this address",
                passed_socket.getsockname(),
            )
    return matching


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port. Raises `ListenError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --bind, --port"
        ) from error
    listener.listen(_BACKLOG)
    return listener


def tls_context(config: Settings) -> "ServerContext | None":
    """Return the TLS context, if there is a certificate. Raises `Invalid`."""
    if config.tls_cert == Path():
        return None
    # Imported late, here and below: most daemons have no certificate.
    from daemon.web.certificate_files import ServerContext

    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, config)
    if config.tls_client_ca != Path():
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a session ticket would skip the check of the client's certificate
    return context


def load_certificate(
    context: "ServerContext", config: Settings, opened: Mapping[Path, Path] = MappingProxyType({})
) -> None:
    """Load the certificate files for new connections.

    `opened` maps files that only root can read to readable copies. Raises `Invalid`; then nothing
    has changed.
    """
    check_certificate(config, opened)
    _load(context, config, opened)


def check_certificate(config: Settings, opened: Mapping[Path, Path] = MappingProxyType({})) -> None:
    """Raise `Invalid` unless `load_certificate` would succeed."""
    from daemon.web.certificate_files import ServerContext

    _load(ServerContext(ssl.PROTOCOL_TLS_SERVER), config, opened)


def _load(context: "ServerContext", config: Settings, opened: Mapping[Path, Path]) -> None:
    from daemon.web.certificate_files import CertificateFile, load_pair

    # The listener for cluster hosts can have another certificate (`of_wrappers`).
    prefix = "wrapper_" if config.tls_cert == config.wrapper_tls_cert else ""
    certificate, key, authorities = (
        CertificateFile(setting, path, opened.get(path, path))
        for setting, path in (
            (f"{prefix}tls_cert", config.tls_cert),
            (f"{prefix}tls_key", config.tls_key),
            ("tls_client_ca", config.tls_client_ca),
        )
    )
    context.validity = load_pair(context, certificate, key)
    if config.tls_client_ca != Path():
        _load_authorities(context, authorities)


def _load_authorities(context: ssl.SSLContext, file: "CertificateFile") -> None:
    """Load the CA certificates and revocation lists for new connections. Raises `Invalid`.

    If the file has a revocation list, every CA in the file needs a valid list.
    """
    content = file.content()
    try:
        context.load_verify_locations(file.opened)
    except OSError as error:
        raise Invalid(
            f"cannot use {file}: it contains no valid certificate in PEM format"
        ) from error
    if b"-----BEGIN X509 CRL-----" in content:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


# --- Unix sockets ------------------------------------------------------------------------------


@contextmanager
def listen_here(
    path: Path, *, group: int | None = None, is_open: bool = False
) -> Iterator[socket.socket]:
    """Yield a socket at a path, and delete it afterwards if permitted. Raises `ListenError`.

    The daemon's user and members of the group may connect; with `is_open`, all users.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _check_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), _OPEN_TO_OWNER)  # the mode of the socket's file
        with _short(path) as name:
            listener.bind(name)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(_OPEN_TO_GROUP)
        if is_open:
            path.chmod(_OPEN_TO_ALL)
        listener.listen(_BACKLOG)
        own = path.stat().st_ino
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {path}: {error.strerror or error}; choose another with --socket"
        ) from error
    with listener:
        try:
            yield listener
        finally:
            # A daemon without root's rights cannot delete it. The next start replaces it.
            with suppress(PermissionError):
                if path.is_socket() and path.stat().st_ino == own:
                    path.unlink()


def _check_free(path: Path) -> None:
    """Delete a socket file that a crash left. Raises `ListenError` if a process listens on it."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, _short(path) as name:
        try:
            probe.connect(name)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ListenError(f"another daemon listens on {path}: choose another with --socket")


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path of the same file that is short enough for the address of a socket."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def peer_of(stream: trio.SocketStream, group: int | None) -> PeerAddress | None:
    """Return the user at the other end of a connection; None for TCP.

    Root and members of `group` are operators.
    """
    if stream.socket.family != socket.AF_UNIX:
        return None
    packed = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    _, uid, gid = _PEERCRED.unpack(packed)
    is_member = group is not None and group in {gid, *_groups(stream)}
    return PeerAddress(uid, uid == 0 or is_member)


def _groups(stream: trio.SocketStream) -> tuple[int, ...]:
    try:
        packed = stream.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS)
    except OSError:  # too many groups, or an older kernel
        return ()
    return struct.unpack(f"{len(packed) // 4}I", packed)


def group_id(name: str) -> int:
    """Return the number of a group. Raises `Invalid`."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise Invalid(
            f"operator_group = {name!r}: this group does not exist; create it, or name another"
        ) from None
