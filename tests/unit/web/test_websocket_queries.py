"""Queries of WebSocket requests."""

import pytest

from daemon.web.websocket import announces_handshake


@pytest.mark.parametrize(
    ("query", "is_announced"),
    [
        ("ws_handshake=true", True),
        ("ws_handshake=false", False),
        ("ws_handshake=x", False),
        ("", False),
    ],
)
def test_handshake_is_announced_only_by_a_valid_flag(query: str, is_announced: bool) -> None:
    assert announces_handshake(query) is is_announced
