"""Where the daemon listens: a port, with or without encryption, and a socket of the machine.

Who connects through the socket is known to the kernel: root, and the members of one group that
the configuration names, act as operators and need no token. All others are asked for one, there
as anywhere.
"""

import grp
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import trio

from daemon.config import Config
from storage.errors import Invalid, StewardError

_BACKLOG = 1024
_PEERCRED = struct.Struct("3i")  # pid, uid, gid
_SO_PEERGROUPS = 59  # linux/socket.h
_MOST_GROUPS = 1024  # bytes of them
_LONGEST_PATH = 107  # bytes; the kernel takes no longer path for a socket
_OPEN_TO_OWNER = 0o600
_OPEN_TO_GROUP = 0o660
_OPEN_TO_ALL = 0o666


class ListenError(StewardError):
    """The address cannot be had."""


class Peer(msgspec.Struct, frozen=True):
    """Who is at the other end of a socket of the machine; `is_operator` needs no token."""

    uid: int
    is_operator: bool


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks one. Raises `ListenError`."""
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


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Return the rules for encrypted connections, if there is a certificate. Raises `Invalid`."""
    if config.tls_cert == Path():
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, config)
    if config.tls_client_ca != Path():
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # with one, a certificate is not looked at again
    return context


def load_certificate(context: ssl.SSLContext, config: Config) -> None:
    """Have new connections go by what is in the files of the certificate now. Raises `Invalid`."""
    try:
        # First into another one: what does not fit must not take the place of what does.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise Invalid(
            f"cannot use the certificate tls_cert = {str(config.tls_cert)!r} with tls_key = "
            f"{str(config.tls_key)!r}: {error}"
        ) from error
    if config.tls_client_ca != Path():
        _load_authorities(context, config.tls_client_ca)


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Have new connections believe these authorities, and what they have revoked. Raises `Invalid`.

    With a list of revocations in the file, each of them needs one that is still valid.
    """
    try:
        context.load_verify_locations(file)
        if b"-----BEGIN X509 CRL-----" in file.read_bytes():
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except OSError as error:
        raise Invalid(f"cannot use tls_client_ca = {str(file)!r}: {error}") from error


# ---- sockets of the machine ----------------------------------------------------------------------


@contextmanager
def listen_here(
    path: Path, *, group: int | None = None, is_open: bool = False
) -> Iterator[socket.socket]:
    """Give a socket at a path, which is gone at the end of the block. Raises `ListenError`.

    The daemon's user may connect, and the members of a group; everybody, if it is open to all.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _check_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), _OPEN_TO_OWNER)  # so the file is made
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
            if path.is_socket() and path.stat().st_ino == own:
                path.unlink()


def _check_free(path: Path) -> None:
    """Remove what a crash has left. Raises `ListenError` when somebody listens there."""
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
    """Give a name for a path that is short enough for a socket."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def peer_of(stream: trio.SocketStream, group: int | None) -> Peer | None:
    """Return who connected; None through a port. Members of `group` are operators, as root is."""
    if stream.socket.family != socket.AF_UNIX:
        return None
    packed = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    _, uid, gid = _PEERCRED.unpack(packed)
    is_member = group is not None and group in {gid, *_groups(stream)}
    return Peer(uid, uid == 0 or is_member)


def _groups(stream: trio.SocketStream) -> tuple[int, ...]:
    try:
        packed = stream.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS)
    except OSError:  # more than fit, or a kernel that does not tell
        return ()
    return struct.unpack(f"{len(packed) // 4}I", packed)


def group_id(name: str) -> int:
    """Return the number of a group. Raises `Invalid`."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise Invalid(
            f"operator_group = {name!r}: there is no such group; add it, or name another"
        ) from None
