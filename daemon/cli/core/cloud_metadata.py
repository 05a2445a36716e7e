"""Client of the cloud's metadata service: identity token and location of the machine."""

import http.client
from urllib.parse import urlencode, urlsplit

import msgspec

from daemon.cli.core.http_client import decode
from storage.errors import Invalid, StewardError

USUAL = "http://169.254.169.254"
_TIMEOUT = 10.0  # seconds
_TOKEN_VERSION = "2018-02-01"  # noqa: S105  # version of an interface
_INSTANCE_VERSION = "2017-08-01"
_MOST = 1024 * 1024  # bytes of a response


class MetadataUnavailable(StewardError):
    """There is no metadata service, or it rejected the request."""


class _Token(msgspec.Struct, frozen=True):
    access_token: str


class CloudInstance(msgspec.Struct, frozen=True, rename="camel"):
    """The location of a machine. `vm_scale_set_name` is empty outside of a scale set."""

    subscription_id: str = ""
    resource_group_name: str = ""
    name: str = ""
    vm_scale_set_name: str = ""


class _Instance(msgspec.Struct, frozen=True):
    compute: CloudInstance = CloudInstance()


class MetadataClient:
    """A client of the metadata service. It raises `MetadataUnavailable`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def token(self, resource: str, identity: str = "") -> str:
        """Return a token of the machine's identity.

        If the machine has several identities, `identity` selects one of them.
        """
        query = {"api-version": _TOKEN_VERSION, "resource": resource}
        if identity:
            query["msi_res_id" if "/" in identity else "client_id"] = identity
        body = self._get("/metadata/identity/oauth2/token", query)
        return decode(body, _Token).access_token

    def location(self) -> CloudInstance:
        """Return the location of the machine."""
        body = self._get("/metadata/instance", {"api-version": _INSTANCE_VERSION})
        return decode(body, _Instance).compute

    def _get(self, path: str, query: dict[str, str]) -> bytes:
        target = urlsplit(self._url)
        if target.scheme != "http" or not target.hostname:
            raise Invalid(f"metadata service {self._url!r}: write it as http://HOST:PORT")
        connection = http.client.HTTPConnection(
            target.hostname, target.port or 80, timeout=_TIMEOUT
        )
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers={"Metadata": "true"})
            answer = connection.getresponse()
            body = answer.read(_MOST)
        except (OSError, http.client.HTTPException) as error:
            raise MetadataUnavailable(
                f"no metadata service at {self._url}: {error or type(error).__name__}; if "
                "this machine is not in the cloud, pass a token with --jwt-file"
            ) from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            message = body.decode(errors="replace").strip()[:500]
            raise MetadataUnavailable(
                f"the metadata service at {self._url} rejected the request: {message}"
            )
        return body


def usual(url: str, of_daemon: str) -> MetadataClient:
    """Return a client of the metadata service.

    Its address is `url`. If that is empty, it is `of_daemon`, or else the usual address.
    """
    return MetadataClient(url or of_daemon or USUAL)
