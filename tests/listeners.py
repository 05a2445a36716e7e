"""Listeners without a daemon, bound while a test block runs."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from daemon.config.settings import Settings
from daemon.web.connections import ConnectionListeners, listeners_at, wrapper_listeners_at
from daemon.web.listeners import ListeningSockets, listen, open_listening_sockets, tls_context


@contextmanager
def open_listeners(
    config: Settings, sockets: Sequence[socket.socket] = ()
) -> Iterator[ConnectionListeners]:
    """Open the client listeners of the settings."""
    with open_listening_sockets(config, sockets) as listening_sockets:
        yield listeners_at(listening_sockets)


@contextmanager
def open_wrapper_listeners(config: Settings) -> Iterator[ConnectionListeners]:
    """Open the listeners for cluster wrappers only."""
    context = tls_context(config.of_wrappers)
    with listen(config.wrapper_host, config.wrapper_port) as port:
        listening_sockets = ListeningSockets(
            port=port, tasks=port, wrappers=port, wrappers_context=context
        )
        listeners = wrapper_listeners_at(listening_sockets)
        assert listeners is not None
        yield listeners
