"""Assignment of listeners to ports."""

import os
import pwd
import socket
import sys

import pytest

from daemon.net.port_listeners import (
    PortListener,
    decode_address,
    describe_conflicts,
    listeners_on,
    ports,
    read_listening_sockets,
)

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:A1B2 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1
"""
UDP6 = """\
  sl  local_address                         remote_address                        st
  12: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07
"""


def test_listener_is_distinguished_from_a_connected_client() -> None:
    assert [port for port, _ in read_listening_sockets("tcp", TCP.splitlines())] == [8080]
    assert [port for port, _ in read_listening_sockets("udp", UDP6.splitlines())] == [53]
    assert list(read_listening_sockets("tcp", [])) == []


def test_connections_are_not_read_in_any_number() -> None:
    lines = iter(TCP.splitlines() + ["1: 0100007F:A1B2 0100007F:1F90 01"] * 10)
    assert [port for port, _ in read_listening_sockets("tcp", lines)] == [8080]
    assert len(list(lines)) == 10


def test_listener_of_this_host_is_detected_and_named() -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert port in ports()
        assert listeners_on({port}) == [PortListener(port, "tcp", "127.0.0.1", me)]
        assert describe_conflicts([("web", port), ("other", 0)], listeners_on({port})) == [
            f'port "web" is in use: a program of user {me} listens on 127.0.0.1:{port} (tcp)'
        ]


def test_no_listener_is_searched_for_without_a_port() -> None:
    assert listeners_on(set()) == []


@pytest.mark.parametrize("there", ["127.0.0.1", "192.0.2.7", "::", "2001:db8::7"])
def test_addresses_are_shown_in_their_usual_form(there: str) -> None:
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    raw = socket.inet_pton(family, there)
    words = [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4)]
    assert decode_address("".join(f"{word:08X}" for word in words)) == there
