"""The simulated cloud of development mode."""

import pytest
import trio

from daemon.clock import SystemClock
from daemon.identity.devcloud import open_devcloud
from storage.errors import Refused


async def test_port_in_use_is_named_with_its_setting() -> None:
    (taken,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = taken.socket.getsockname()[1]
    async with taken:
        with pytest.raises(
            Refused, match=f"port {port}: Address already in use; .* dev_cloud_port"
        ):
            async with open_devcloud(SystemClock(), port):
                pass
