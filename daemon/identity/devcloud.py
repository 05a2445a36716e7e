"""A fake cloud on loopback, for trying out logins without a cloud.

It has one machine with an identity, a directory that signs its tokens, a metadata service, and a
resource manager that knows the machine. Every client that reaches it can get the machine's token,
so it is for development only.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import parse_qsl, urlsplit

import h11
import msgspec
import trio

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.identity import jwt_signing, keypair
from daemon.identity.jwt_verification import (
    check_times,
    parse_jwt,
    read_standard,
    verify_signature,
)
from storage.errors import Refused
from storage.records.base import SECOND

log = logging.getLogger("steward.identity.devcloud")

PORT = 4670
TENANT = "00000000-0000-4000-8000-00000000de01"
SUBSCRIPTION = "00000000-0000-4000-8000-00000000de02"
PRINCIPAL = "00000000-0000-4000-8000-00000000de03"
CLIENT = "00000000-0000-4000-8000-00000000de04"
GROUP = "dev-group"
MACHINE = "dev-machine"
RESOURCE = "https://management.azure.com/"
MACHINE_ID = (
    f"/subscriptions/{SUBSCRIPTION}/resourcegroups/{GROUP}"
    f"/providers/Microsoft.Compute/virtualMachines/{MACHINE}"
)
_TTL = 86_400  # seconds, as in the real cloud
_MAX_REQUEST = 64 * 1024


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request to the fake cloud."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


Said = tuple[int, Mapping[str, object]]


class DevCloud:
    """The responses of the fake cloud."""

    def __init__(self, url: str, clock: Clock, key: keypair.KeyPair) -> None:
        self.url = url
        self._clock = clock
        self._key = key
        # A new key ID at each start, so that a client with an older key fetches this key.
        self._kid = f"{key.public_key().public_numbers().n:x}"[:16]
        self._public = keypair.public(self._kid, key)

    @property
    def issuer(self) -> str:
        """Return the issuer name of the fake directory, which is a URL."""
        return f"{self.url}/{TENANT}/"

    def as_cloud_of(self, config: Settings) -> Settings:
        """Return the settings of a daemon that uses this fake cloud."""
        return msgspec.structs.replace(
            config,
            cloud_directory_url=self.url,
            cloud_resource_manager_url=self.url,
            cloud_graph_url=self.url,
            cloud_metadata_url=self.url,
            dev_cloud_port=int(self.url.rpartition(":")[2]),  # the kernel may have chosen the port
        )

    def answer(self, request: RecordedRequest) -> Said:
        """Return the status and the document of the response to a request."""
        pages: dict[str, Callable[[], Said]] = {
            f"/{TENANT}/.well-known/openid-configuration": self._discovery,
            f"/{TENANT}/discovery/keys": self._keys,
            "/metadata/identity/oauth2/token": partial(self._token, request),
            "/metadata/instance": partial(self._instance, request),
            MACHINE_ID.lower(): partial(self._machine, request),
        }
        page = pages.get(request.path) or pages.get(request.path.lower())
        return (
            page()
            if page
            else _refused(
                404, "NotFound", "the simulated cloud (--dev-cloud) does not support this request"
            )
        )

    def _discovery(self) -> Said:
        keys = f"{self.url}/{TENANT}/discovery/keys"
        return 200, {"issuer": self.issuer, "jwks_uri": keys}

    def _keys(self) -> Said:
        return 200, {"keys": [msgspec.to_builtins(self._public)]}

    def _token(self, request: RecordedRequest) -> Said:
        if request.headers.get("metadata", "").lower() != "true":
            return 400, {"error": "invalid_request", "error_description": _NO_HEADER}
        now = self._clock.now() // SECOND
        claims = {
            "iss": self.issuer,
            "aud": request.query.get("resource", RESOURCE),
            "iat": now,
            "nbf": now,
            "exp": now + _TTL,
            "tid": TENANT,
            "oid": PRINCIPAL,
            "sub": PRINCIPAL,
            "appid": CLIENT,
            "xms_mirid": MACHINE_ID,
        }
        token = jwt_signing.sign(claims, self._kid, self._key)
        return 200, {
            "access_token": token,
            "client_id": CLIENT,
            "expires_in": str(_TTL),
            "expires_on": str(now + _TTL),
            "resource": claims["aud"],
            "token_type": "Bearer",
        }

    def _instance(self, request: RecordedRequest) -> Said:
        if request.headers.get("metadata", "").lower() != "true":
            return 400, {"error": f"Bad request. {_NO_HEADER}"}
        compute = {
            "subscriptionId": SUBSCRIPTION,
            "resourceGroupName": GROUP,
            "name": MACHINE,
            "vmScaleSetName": "",
            "location": "westeurope",
        }
        return 200, {"compute": compute}

    def _machine(self, request: RecordedRequest) -> Said:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            parsed = parse_jwt(token if scheme == "Bearer" else "")
            verify_signature(parsed, [self._public])
            check_times(read_standard(parsed), self._clock.now())
        except Refused as error:
            return _refused(401, "InvalidAuthenticationToken", str(error))
        identity = {"principalId": PRINCIPAL, "tenantId": TENANT, "type": "SystemAssigned"}
        return 200, {
            "id": MACHINE_ID,
            "name": MACHINE,
            "location": "westeurope",
            "identity": identity,
        }


_NO_HEADER = "Required metadata header not specified"


def _refused(status: int, code: str, message: str) -> Said:
    return status, {"error": {"code": code, "message": message}}


# ---- its listener --------------------------------------------------------------------------------


@asynccontextmanager
async def open_devcloud(clock: Clock, port: int = PORT) -> AsyncIterator[DevCloud]:
    """Serve a small cloud on loopback while the block runs; port 0 selects a free port.

    Raises `Refused`.
    """
    key = await trio.to_thread.run_sync(keypair.generate)
    try:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    except OSError as error:
        raise Refused(
            f"the simulated cloud (--dev-cloud) cannot listen on port {port}: {error.strerror}; "
            "choose another port with dev_cloud_port"
        ) from error
    number = listeners[0].socket.getsockname()[1]
    cloud = DevCloud(f"http://127.0.0.1:{number}", clock, key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, partial(_serve_connection, cloud), listeners)
        log.info("the simulated cloud is at %s", cloud.url)
        yield cloud
        nursery.cancel_scope.cancel()


async def _serve_connection(cloud: DevCloud, stream: trio.SocketStream) -> None:
    """Answer requests one by one until the client disconnects."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_REQUEST)
    async with stream:
        try:
            while await _exchange(cloud, connection, stream):
                connection.start_next_cycle()
        except (h11.ProtocolError, trio.BrokenResourceError):
            return


async def _exchange(cloud: DevCloud, connection: h11.Connection, stream: trio.SocketStream) -> bool:
    """Answer one request; return whether the connection may carry another request."""
    request = None
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_MAX_REQUEST))
        elif isinstance(event, h11.Request):
            request = _parse_request(event)
        elif isinstance(event, h11.ConnectionClosed):
            return False
    status, document = cloud.answer(request) if request else (400, {})
    body = msgspec.json.encode(document)
    head = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    for part in (
        h11.Response(status_code=status, headers=head),
        h11.Data(data=body),
        h11.EndOfMessage(),
    ):
        await stream.send_all(connection.send(part) or b"")
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


def _parse_request(request: h11.Request) -> RecordedRequest:
    target = urlsplit(request.target.decode("latin-1"))
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers}
    return RecordedRequest(target.path, dict(parse_qsl(target.query)), headers)
