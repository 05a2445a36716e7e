"""TLS client contexts for outgoing connections, cached by protocol.

Building a context that trusts the host's CA certificates takes 40 ms or more. It is therefore built
in a thread, once per ALPN protocol, and again only when the CA files have changed.
"""

import os
import ssl

import msgspec
import trio

_Stamp = tuple[str, int, int, int]  # path, modification time, size, inode
_Authority = tuple[_Stamp, ...]


class _Built(msgspec.Struct, frozen=True):
    authority: _Authority
    context: ssl.SSLContext


_built: dict[tuple[bool, str], _Built] = {}
_building = trio.Lock()


async def client_context(*, verify: bool, protocol: str, authority_pem: str = "") -> ssl.SSLContext:
    """Return the client context for an ALPN protocol, with or without certificate verification.

    A context for the CA certificates in `authority_pem` trusts no others. Raises `ssl.SSLError` if
    these certificates cannot be read.
    """
    if authority_pem:
        return await trio.to_thread.run_sync(_build_for, authority_pem, protocol)
    key = verify, protocol
    authority = _authority() if verify else ()
    if (built := _built.get(key)) and built.authority == authority:
        return built.context
    async with _building:
        if not (built := _built.get(key)) or built.authority != authority:
            context = await trio.to_thread.run_sync(_build, verify, protocol)
            _built[key] = built = _Built(authority, context)
    return built.context


def _build(verify: bool, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context() if verify else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context


def _build_for(authority_pem: str, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority_pem)
    context.set_alpn_protocols([protocol])
    return context


def _authority() -> _Authority:
    """Return the state of the host's CA files."""
    paths = ssl.get_default_verify_paths()
    return tuple(_stamp(path) for path in (paths.cafile, paths.capath) if path)


def _stamp(path: str) -> _Stamp:
    try:
        metadata = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, metadata.st_mtime_ns, metadata.st_size, metadata.st_ino
