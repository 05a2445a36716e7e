"""The simulated cloud of development mode."""

from collections.abc import Mapping

import pytest
import trio

from daemon.clock import SystemClock
from daemon.identity import keypair
from daemon.identity.devcloud import MACHINE_ID, DevCloud, RecordedRequest, open_devcloud
from daemon.identity.jwt_verification import parse_jwt, read_standard
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


def answer(cloud: DevCloud, path: str, **headers: str) -> tuple[int, Mapping[str, object]]:
    return cloud.answer(RecordedRequest(path, {}, headers))


def test_token_of_the_machine_opens_its_resource_for_a_day() -> None:
    cloud = DevCloud("http://cloud", SystemClock(), keypair.generate())
    status, document = answer(cloud, "/metadata/identity/oauth2/token", metadata="true")
    assert status == 200
    token = str(document["access_token"])
    claims = read_standard(parse_jwt(token))
    assert claims.exp == (claims.iat or 0) + 86_400
    assert document["expires_on"] == str(claims.exp)
    assert answer(cloud, MACHINE_ID, authorization=f"Bearer {token}")[0] == 200
    assert answer(cloud, MACHINE_ID, authorization=f"Basic {token}")[0] == 401


def test_metadata_needs_its_header() -> None:
    cloud = DevCloud("http://cloud", SystemClock(), keypair.generate())
    for path in ("/metadata/identity/oauth2/token", "/metadata/instance"):
        assert [answer(cloud, path)[0], answer(cloud, path, metadata="true")[0]] == [400, 200]
