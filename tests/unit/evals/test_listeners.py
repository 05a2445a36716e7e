"""On which ports somebody listens."""

import socket

from daemon.evals.listeners import listening, ports

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:A1B2 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1
"""
UDP6 = """\
  sl  local_address                         remote_address                        st
  12: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07
"""


def test_who_listens_is_told_from_who_has_connected() -> None:
    assert list(ports(TCP)) == [8080]
    assert list(ports(UDP6)) == [53]
    assert list(ports("")) == []


def test_a_listener_of_this_machine_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        assert one.getsockname()[1] in listening()
