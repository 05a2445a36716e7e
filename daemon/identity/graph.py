"""The directory's graph: the passwords of an application, and the groups of a principal."""

from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import msgspec

from daemon.identity.credentials import Client, Credentials
from daemon.identity.resources import path
from daemon.identity.transport import Failed, Response, decoded, message_of
from storage.records.base import SECOND

MOST_GROUPS = 10_000


class Password(msgspec.Struct, frozen=True, rename="camel"):
    """A password of an application, as the directory lists it."""

    key_id: str = ""
    display_name: str | None = None
    secret_text: str | None = None


class Application(msgspec.Struct, frozen=True, rename="camel"):
    """An application of the directory; `id` is the directory's name for it."""

    id: str
    password_credentials: list[Password] = []


class _Found(msgspec.Struct, frozen=True):
    value: list[Application] = []


class _Groups(msgspec.Struct, frozen=True):
    value: list[str] = []


class Graph:
    """Asks the graph as a client. Everything raises `Refused` with what the graph says."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def application(self, client: Client) -> Application:
        """Return the application that a client is."""
        name = client.settings.client_id.replace("'", "''")
        query = urlencode({"$filter": f"appId eq '{name}'"}, quote_via=quote, safe="$")
        answer = await self._asked(client, "GET", f"/v1.0/applications?{query}")
        if not answer.is_good:
            raise Failed(message_of(answer))
        found = decoded(answer.body, _Found)
        if found is None or not found.value:
            raise Failed("no application found")
        return found.value[0]

    async def add_password(
        self, client: Client, application: Application, name: str, ends_at: int
    ) -> Password:
        """Return a new password of an application."""
        end = datetime.fromtimestamp(ends_at // SECOND, UTC)
        answer = await self._asked(
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
        password = decoded(answer.body, Password) if answer.is_good else None
        if password is None or not (password.key_id and password.secret_text):
            raise Failed(f"failed to add new password: {message_of(answer)}")
        return password

    async def remove_password(self, client: Client, application: Application, key_id: str) -> None:
        """Remove a password of an application."""
        answer = await self._asked(
            client, "POST", f"{_path(application)}/removePassword", {"keyId": key_id}
        )
        if not answer.is_good:
            raise Failed(f"failed to remove password {key_id}: {message_of(answer)}")

    async def groups_of(self, client: Client, principal: str) -> list[str]:
        """Return the groups of a principal, of which there may be more than fit into its token."""
        answer = await self._asked(
            client,
            "POST",
            f"{path('v1.0', 'directoryObjects', principal)}/getMemberGroups",
            {"securityEnabledOnly": False},
        )
        if not answer.is_good:
            raise Failed(f"the groups of {principal} cannot be looked up: {message_of(answer)}")
        groups = decoded(answer.body, _Groups)
        if groups is None or len(groups.value) > MOST_GROUPS:
            raise Failed(f"the groups of {principal} cannot be read")
        return groups.value

    async def _asked(
        self, client: Client, method: str, where: str, document: object = None
    ) -> Response:
        settings = client.settings
        url = f"{settings.endpoints.graph}{where}"
        return await self._credentials.ask(client, settings.graph_audience, method, url, document)


def _path(application: Application) -> str:
    return path("v1.0", "applications", application.id)
