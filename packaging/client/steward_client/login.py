"""Login with the cloud identity of the host, and renewal of the token."""

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import httpx
import msgspec

from steward_client.errors import ApiError, ClientError, Denied, LoginFailed
from steward_client.transport import Call, Connection, segment
from steward_client.wire import decode

METADATA_URL = "http://169.254.169.254"
_RESOURCE = "https://management.azure.com/"
_TOKEN_VERSION = "2018-02-01"  # noqa: S105  # of an interface
_INSTANCE_VERSION = "2017-08-01"
_METADATA_WITHIN = 10.0  # timeout of the metadata service in seconds
_RENEWED_AT = 2 / 3  # share of the lifetime of a token after which it is renewed
_SOONEST = 1.0  # minimum seconds between two renewals
_ID = re.compile(r"/subscriptions/([^/]+)/resourcegroups/([^/]+)/.+", re.IGNORECASE)

T = TypeVar("T")


class CloudLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a login: the role, and the source of the identity token.

    By default, the metadata service of the cloud issues the token for this virtual machine.
    `jwt` is an identity token, or a function that returns one at each login. `resource_id` is the
    resource that `jwt` identifies, if that resource is not a virtual machine.
    """

    role: str
    path: str = "cloudid"
    jwt: str | Callable[[], Awaitable[str]] = ""
    resource: str = _RESOURCE
    identity: str = ""
    resource_id: str = ""
    vm: str = ""
    vmss: str = ""
    metadata_url: str = METADATA_URL


class _Auth(msgspec.Struct, frozen=True):
    client_token: str
    lease_duration: int = 0
    renewable: bool = False


class _LoggedIn(msgspec.Struct, frozen=True):
    auth: _Auth


class _IdentityToken(msgspec.Struct, frozen=True):
    access_token: str


class _Machine(msgspec.Struct, frozen=True, rename="camel"):
    subscription_id: str = ""
    resource_group_name: str = ""
    name: str = ""
    vm_scale_set_name: str = ""


class _Instance(msgspec.Struct, frozen=True):
    compute: _Machine = _Machine()


class LoginTokens:
    """The token of a login. `run` renews the token, or logs in again if a renewal fails."""

    def __init__(self, connection: Connection, login: CloudLogin) -> None:
        self._connection, self._login = connection, login
        self._auth: _Auth | None = None
        self._due = 0.0  # time of the next renewal, on the clock of the event loop
        self._busy = anyio.Lock()  # one login at a time; other callers wait for its token

    async def token(self) -> str:
        """Return the current token; log in if there is no token. Raises `LoginFailed`."""
        async with self._busy:
            if self._auth is None:
                self._keep(await self._log_in())
            assert self._auth is not None  # noqa: S101  # set above
            return self._auth.client_token

    async def replace(self, token: str) -> bool:
        """Log in again if `token` is the current token and is no longer valid.

        Return whether the current token now differs from `token`.
        """
        async with self._busy:
            if self._auth is None or self._auth.client_token == token:
                if await self._is_valid(token):
                    return False
                self._keep(await self._log_in())
        return True

    async def _is_valid(self, token: str) -> bool:
        call = Call(method="GET", path="/v1/acl/token/self", token=token, repeatable=True)
        try:
            await self._connection.send(call)
        except ApiError:
            return False
        return True

    async def run(self) -> None:
        """Renew the token after two thirds of its lifetime, until cancelled.

        If neither a renewal nor a login succeeds, the next request logs in and raises the error.
        """
        while True:
            try:
                await self.token()
            except ClientError:
                await anyio.sleep(_SOONEST)
                continue
            if not self._lives:
                await anyio.sleep_forever()
            await anyio.sleep(max(self._due - anyio.current_time(), _SOONEST))
            await self._renew()

    @property
    def _lives(self) -> bool:
        """Return whether the token has a limited lifetime."""
        return self._auth is not None and self._auth.lease_duration > 0

    async def _renew(self) -> None:
        async with self._busy:
            if self._auth is None or anyio.current_time() < self._due:
                return  # another caller has already logged in
            try:
                self._keep(await self._renewed(self._auth))
            except ClientError:
                self._auth = None

    async def _renewed(self, auth: _Auth) -> _Auth:
        if not auth.renewable:
            return await self._log_in()
        path = "/v1/auth/token/renew-self"
        try:
            renewed = await self._send(path, {}, auth.client_token)
        except Denied:
            return await self._log_in()
        # Near the end of the longest lifetime, a renewal no longer adds time.
        if renewed.lease_duration < auth.lease_duration / 2:
            return await self._log_in()
        return renewed

    async def _log_in(self) -> _Auth:
        path = f"/v1/auth/{segment(self._login.path.strip('/'))}/login"
        try:
            return await self._send(path, await self._request(), "")
        except ApiError as error:
            raise LoginFailed(
                f"the login with role {self._login.role!r} failed: {error}"
            ) from error

    async def _send(self, path: str, body: object, token: str) -> _Auth:
        call = Call(method="POST", path=path, body=body, token=token, repeatable=True)
        return (await self._connection.send(call)).decode(_LoggedIn).auth

    def _keep(self, auth: _Auth) -> None:
        self._auth = auth
        self._due = anyio.current_time() + auth.lease_duration * _RENEWED_AT

    # --- identity ---

    async def _request(self) -> dict[str, str]:
        login = self._login
        body = {"role": login.role, "jwt": await self._jwt(), **await self._place()}
        return {name: value for name, value in body.items() if value}

    async def _jwt(self) -> str:
        login = self._login
        if isinstance(login.jwt, str) and login.jwt:
            return login.jwt
        if callable(login.jwt):
            return await login.jwt()
        query = {"api-version": _TOKEN_VERSION, "resource": login.resource}
        if login.identity:
            query["msi_res_id" if "/" in login.identity else "client_id"] = login.identity
        identity_token = await self._metadata(
            "/metadata/identity/oauth2/token", query, _IdentityToken
        )
        return identity_token.access_token

    async def _place(self) -> dict[str, str]:
        """Return the login fields that identify the virtual machine or the other resource.

        Without `resource_id`, `vm` and `vmss`, a login with `jwt` has no such fields.
        """
        login = self._login
        if login.resource_id:
            match = _ID.fullmatch(login.resource_id)
            if match is None:
                raise LoginFailed(
                    f"resource_id {login.resource_id!r} does not begin with /subscriptions/ID/"
                )
            return {
                "resource_id": login.resource_id,
                "subscription_id": match[1],
                "resource_group_name": match[2],
            }
        if login.jwt and not (login.vm or login.vmss):
            return {}
        query = {"api-version": _INSTANCE_VERSION}
        machine = (await self._metadata("/metadata/instance", query, _Instance)).compute
        vmss = login.vmss or ("" if login.vm else machine.vm_scale_set_name)
        return {
            "subscription_id": machine.subscription_id,
            "resource_group_name": machine.resource_group_name,
            "vmss_name": vmss,
            "vm_name": "" if vmss else login.vm or machine.name,
        }

    async def _metadata(self, path: str, query: dict[str, str], kind: type[T]) -> T:
        url = self._login.metadata_url.rstrip("/")
        try:
            # The service is on the local link of this host, and a proxy must not see the token.
            async with httpx.AsyncClient(trust_env=False, timeout=_METADATA_WITHIN) as http:
                response = await http.get(url + path, params=query, headers={"Metadata": "true"})
        except httpx.TransportError as error:
            raise LoginFailed(
                f"no metadata service at {url}: {str(error) or type(error).__name__}; "
                "outside of a cloud virtual machine, pass a token with `jwt`"
            ) from error
        if response.is_error:
            raise LoginFailed(
                f"the metadata service at {url} refused the request: {response.text[:500]}"
            )
        return decode(response.content, kind)
