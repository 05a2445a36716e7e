"""Lookups in the cloud: the resource of a token, and the identities of that resource.

API versions of resource types are cached. Resources and principals are requested each time by
default, so that a machine that has lost its identity is rejected immediately. If the configuration
enables a cache for them, missing objects are cached for a shorter time.
"""

from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from daemon.clock import Clock
from daemon.identity.cloud_http import CloudRequestFailed, CloudResponse, decoded
from daemon.identity.credentials import AccessTokenCache, CloudClient
from daemon.identity.resource_id import ResourceID, parse, path
from daemon.identity.single_flight import SingleFlight
from daemon.text.go_format import quote
from storage.errors import Refused
from storage.records.base import SECOND

T = TypeVar("T")

_STABLE = 300  # seconds for which versions are cached
_ABSENT = 10  # seconds for which a missing object is cached
_MOST = 4096  # cached responses
_MOST_PAGES = 50
_NOT_FOUND = 404
_COMPUTE = "2022-11-01"
_IDENTITIES = "2024-11-30"
_PROVIDERS = "2021-04-01"
_UNLISTED = "2022-03-01"  # version for a type that its provider does not list


class _Assigned(msgspec.Struct, frozen=True, rename="camel"):
    principal_id: str = ""
    client_id: str = ""


class _Identities(msgspec.Struct, frozen=True, rename="camel"):
    principal_id: str = ""
    user_assigned_identities: dict[str, _Assigned] | None = None


class CloudResource(msgspec.Struct, frozen=True):
    """A resource in the cloud."""

    location: str = ""
    identity: _Identities | None = None


class _UserAssigned(msgspec.Struct, frozen=True):
    properties: _Assigned = _Assigned()


class _Page(msgspec.Struct, frozen=True, rename="camel"):
    value: list[_UserAssigned] = []
    next_link: str = ""


class _Type(msgspec.Struct, frozen=True, rename="camel"):
    resource_type: str = ""
    api_versions: list[str] = []


class _Provider(msgspec.Struct, frozen=True, rename="camel"):
    resource_types: list[_Type] = []


class _Kept(msgspec.Struct, frozen=True):
    answer: object
    until: int


class ResourceManager:
    """A client of the cloud's resource manager, with the identity of a mount."""

    def __init__(self, credentials: AccessTokenCache, clock: Clock, keep: int) -> None:
        self._credentials = credentials
        self._clock = clock
        self._keep = keep
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._flights: SingleFlight[object] = SingleFlight()

    async def virtual_machine(
        self, client: CloudClient, subscription: str, group: str, name: str
    ) -> CloudResource:
        """Return a virtual machine. Raises `Refused`."""
        where = _compute(subscription, group, "virtualMachines", name)
        query = {"$expand": "instanceView", "api-version": _COMPUTE}
        return await self._resource(client, where, query, "virtual machine")

    async def scale_set(
        self, client: CloudClient, subscription: str, group: str, name: str
    ) -> CloudResource:
        """Return a virtual machine scale set. Raises `Refused`."""
        where = _compute(subscription, group, "virtualMachineScaleSets", name)
        return await self._resource(
            client, where, {"api-version": _COMPUTE}, "virtual machine scale set"
        )

    async def resource(self, client: CloudClient, resource: ResourceID) -> CloudResource:
        """Return a resource of any type. Raises `Refused`."""
        version = await self._version(client, resource)
        return await self._resource(
            client, resource.path, {"api-version": version}, "user assigned identity"
        )

    async def principal(self, client: CloudClient, text: str) -> str:
        """Return the principal of a user-assigned identity, given its resource ID.

        Raises `Refused`.
        """
        parsed = parse(text)
        if parsed is None:
            raise Refused(f"unable to parse the user assigned identity {quote(text)}")
        url = _url(client, parsed.path, {"api-version": _IDENTITIES})
        message = "unable to retrieve user assigned identity metadata"
        answer = await self._read_record(client, url, _UserAssigned, message, self._keep)
        return answer.properties.principal_id

    async def client_ids(self, client: CloudClient, subscription: str, group: str) -> list[str]:
        """Return the client IDs of all user-assigned identities of a group. Raises `Refused`."""
        where = path(
            *("subscriptions", subscription, "resourceGroups", group, "providers"),
            *("Microsoft.ManagedIdentity", "userAssignedIdentities"),
        )
        url = _url(client, where, {"api-version": _IDENTITIES})
        client_ids: list[str] = []
        for _ in range(_MOST_PAGES):
            message = "unable to list user assigned identities"
            page = await self._read_record(client, url, _Page, message, self._keep)
            client_ids += [user_assigned.properties.client_id for user_assigned in page.value]
            if not page.next_link:
                return client_ids
            url = _same_host(page.next_link, url)
        raise CloudRequestFailed(f"more than {_MOST_PAGES} pages of identities in group {group}")

    async def _version(self, client: CloudClient, resource: ResourceID) -> str:
        """Return the API version for a type of resource."""
        where = path("subscriptions", resource.subscription, "providers", resource.namespace)
        url = _url(client, where, {"api-version": _PROVIDERS})
        message = f"unable to get the provider for resource {quote(resource.path)}"
        provider = await self._read_record(
            client, url, _Provider, message, _STABLE, keep_absence=False
        )
        type_name = resource.type.partition("/")[2].lower()
        for resource_type in provider.resource_types:
            if resource_type.resource_type.lower() == type_name:
                final = [
                    version for version in resource_type.api_versions if "preview" not in version
                ]
                return max(final, default=_UNLISTED)
        return _UNLISTED

    async def _resource(
        self, client: CloudClient, where: str, query: dict[str, str], kind_of_metadata: str
    ) -> CloudResource:
        url = _url(client, where, query)
        text = f"unable to retrieve {kind_of_metadata} metadata"
        return await self._read_record(client, url, CloudResource, text, self._keep)

    async def _read_record(
        self,
        client: CloudClient,
        url: str,
        kind: type[T],
        message: str,
        keep: int,
        *,
        keep_absence: bool = True,
    ) -> T:
        """Return the cloud's response as a record, which is cached for `keep` seconds.

        Raises `Refused` with a text that begins with `message`. The error for a missing object is
        also cached, unless `keep_absence` is false.
        """
        key = (client.mount.accessor, url)
        cached = self._kept.get(key)
        if cached is None or cached.until <= self._clock.now():
            answer = await self._flights.join(
                key, lambda: self._request(client, url, kind, message)
            )
            seconds = (
                min(keep, _ABSENT if keep_absence else 0) if isinstance(answer, Refused) else keep
            )
            self._remember(key, answer, seconds)
        else:
            answer = cached.answer
        if isinstance(answer, Refused):
            raise Refused(str(answer))
        return answer  # type: ignore[return-value]  # all responses of one URL have the same type

    async def _request(
        self, client: CloudClient, url: str, kind: type[T], message: str
    ) -> T | Refused:
        """Return the decoded response, or a `Refused` (not raised) if the object is missing."""
        audience = client.settings.endpoints.audience
        try:
            answer = await self._credentials.request(client, audience, "GET", url)
        except Refused as error:
            raise CloudRequestFailed(f"{message}: {error}") from error
        if answer.status == _NOT_FOUND:
            return Refused(f"{message}: {answer.described()}")
        if not answer.is_good:
            raise CloudRequestFailed(f"{message}: {answer.described()}")
        record = decoded(answer.body, kind)
        if record is None:
            raise CloudRequestFailed(
                f"{message}: the response of {_url_without_query(answer)} has an unexpected form"
            )
        return record

    def _remember(self, key: tuple[str, str], answer: object, seconds: int) -> None:
        if not seconds:
            return
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = _Kept(answer, self._clock.now() + seconds * SECOND)

    def forget(self, accessor: str) -> None:
        """Drop the cached responses of a mount."""
        for key in [key for key in self._kept if key[0] == accessor]:
            del self._kept[key]


def _url_without_query(answer: CloudResponse) -> str:
    return answer.url.partition("?")[0]


def _compute(subscription: str, group: str, kind: str, name: str) -> str:
    return path(
        *("subscriptions", subscription, "resourceGroups", group),
        *("providers", "Microsoft.Compute", kind, name),
    )


def _url(client: CloudClient, where: str, query: dict[str, str]) -> str:
    return f"{client.settings.endpoints.resource_manager}{where}?{urlencode(query)}"


def _same_host(link: str, url: str) -> str:
    """Return a link to the next page.

    Raises `CloudRequestFailed` if the link is invalid, or points to another host.
    """
    try:
        there, here = urlsplit(link), urlsplit(url)
    except ValueError as error:
        raise CloudRequestFailed(
            f"the cloud's response has an invalid link to its next page: {error}"
        ) from error
    if (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise CloudRequestFailed(
            "the cloud's response links to its next page on another host, "
            f"{there.scheme}://{there.netloc}: the link was not followed"
        )
    return link
