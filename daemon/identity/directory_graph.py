"""Client of the directory's graph API: passwords of an application, and groups of a principal."""

from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import msgspec

from daemon.identity.cloud_http import CloudRequestFailed, CloudResponse, decoded, message_of
from daemon.identity.credentials import AccessTokenCache, CloudClient
from daemon.identity.resource_id import path
from storage.records.base import SECOND

MOST_GROUPS = 10_000


class AppPassword(msgspec.Struct, frozen=True, rename="camel"):
    """A password of an application, as the directory lists it."""

    key_id: str = ""
    display_name: str | None = None
    secret_text: str | None = None


class AppRegistration(msgspec.Struct, frozen=True, rename="camel"):
    """An application of the directory; `id` is its object ID, not its client ID."""

    id: str
    password_credentials: list[AppPassword] = []


class _Found(msgspec.Struct, frozen=True):
    value: list[AppRegistration] = []


class _Groups(msgspec.Struct, frozen=True):
    value: list[str] = []


class DirectoryGraph:
    """A client of the graph API. All methods raise `Refused` with the API's error."""

    def __init__(self, credentials: AccessTokenCache) -> None:
        self._credentials = credentials

    async def application(self, client: CloudClient) -> AppRegistration:
        """Return the app registration of a client."""
        name = client.settings.client_id.replace("'", "''")
        query = urlencode({"$filter": f"appId eq '{name}'"}, quote_via=quote, safe="$")
        answer = await self._request(client, "GET", f"/v1.0/applications?{query}")
        if not answer.is_good:
            raise CloudRequestFailed(message_of(answer))
        applications = decoded(answer.body, _Found)
        if applications is None or not applications.value:
            raise CloudRequestFailed("no application found")
        return applications.value[0]

    async def add_password(
        self, client: CloudClient, application: AppRegistration, name: str, ends_at: int
    ) -> AppPassword:
        """Return a new password of an application."""
        end = datetime.fromtimestamp(ends_at // SECOND, UTC)
        answer = await self._request(
            client,
            "POST",
            f"{_path(application)}/addPassword",
            {
                "passwordCredential": {
                    "displayName": name,
                    "endDateTime": f"{end:%Y-%m-%dT%H:%M:%SZ}",
                }
            },
        )
        password = decoded(answer.body, AppPassword) if answer.is_good else None
        if password is None or not (password.key_id and password.secret_text):
            raise CloudRequestFailed(f"failed to add new password: {message_of(answer)}")
        return password

    async def remove_password(
        self, client: CloudClient, application: AppRegistration, key_id: str
    ) -> None:
        """Remove a password of an application."""
        answer = await self._request(
            client, "POST", f"{_path(application)}/removePassword", {"keyId": key_id}
        )
        if not answer.is_good:
            raise CloudRequestFailed(f"failed to remove password {key_id}: {message_of(answer)}")

    async def groups_of(self, client: CloudClient, principal: str) -> list[str]:
        """Return all groups of a principal; a token lists them only if they fit into it."""
        answer = await self._request(
            client,
            "POST",
            f"{path('v1.0', 'directoryObjects', principal)}/getMemberGroups",
            {"securityEnabledOnly": False},
        )
        if not answer.is_good:
            raise CloudRequestFailed(
                f"the groups of {principal} cannot be looked up: {message_of(answer)}"
            )
        groups = decoded(answer.body, _Groups)
        if groups is None or len(groups.value) > MOST_GROUPS:
            raise CloudRequestFailed(f"the groups of {principal} cannot be read")
        return groups.value

    async def _request(
        self, client: CloudClient, method: str, where: str, document: object = None
    ) -> CloudResponse:
        settings = client.settings
        url = f"{settings.endpoints.graph}{where}"
        return await self._credentials.request(
            client, settings.graph_audience, method, url, document
        )


def _path(application: AppRegistration) -> str:
    return path("v1.0", "applications", application.id)
