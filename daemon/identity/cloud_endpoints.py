"""Cloud endpoints and settings, from the configuration and the daemon's environment.

If a field of the configuration is empty, the daemon reads an environment variable at each use of
the field. The name of the variable begins with `CLOUDID_` or `AZURE_`; the former has precedence.
"""

from collections.abc import Mapping

import msgspec

from daemon.config.settings import Settings
from daemon.identity.cloud_http import CloudRequestFailed
from storage.records.identity import MethodConfig

_PREFIXES = ("CLOUDID_", "AZURE_")


class CloudEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of one cloud, without trailing slashes, and the audience for its tokens."""

    directory: str
    resource_manager: str
    audience: str  # audience of tokens for the resource manager
    graph: str


_CLOUDS = {
    "AZUREPUBLICCLOUD": CloudEndpoints(
        directory="https://login.microsoftonline.com",
        resource_manager="https://management.azure.com",
        audience="https://management.core.windows.net/",
        graph="https://graph.microsoft.com",
    ),
    "AZURECHINACLOUD": CloudEndpoints(
        directory="https://login.chinacloudapi.cn",
        resource_manager="https://management.chinacloudapi.cn",
        audience="https://management.core.chinacloudapi.cn/",
        graph="https://microsoftgraph.chinacloudapi.cn",
    ),
    "AZUREUSGOVERNMENTCLOUD": CloudEndpoints(
        directory="https://login.microsoftonline.us",
        resource_manager="https://management.usgovcloudapi.net",
        audience="https://management.core.usgovcloudapi.net/",
        graph="https://graph.microsoft.us",
    ),
}
_DEFAULT = "AZUREPUBLICCLOUD"


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration whose empty fields were filled from the environment and the defaults."""

    config: MethodConfig
    tenant_id: str
    resource: str
    client_id: str
    environment_secret: str = ""
    endpoints: CloudEndpoints
    graph_audience: str
    metadata_url: str
    token_file: str


def complete(
    config: MethodConfig | None, agent: Settings, environment: Mapping[str, str]
) -> CloudSettings:
    """Fill the empty fields of a configuration from the environment and the defaults.

    Raises `CloudRequestFailed` if a required field stays empty or the cloud is unknown.
    """
    config = config or MethodConfig()
    variables = _Environment(environment)
    tenant = config.tenant_id or variables["TENANT_ID"]
    if not tenant:
        raise CloudRequestFailed("tenant_id is required")
    resource = config.resource or variables["AD_RESOURCE"]
    if not resource:
        raise CloudRequestFailed("resource is required")
    name = (config.environment or variables["ENVIRONMENT"] or _DEFAULT).upper()
    cloud = _CLOUDS.get(name)
    if cloud is None:
        raise CloudRequestFailed(f'err: no cloud configuration matching the name "{name}"')
    return CloudSettings(
        config=config,
        tenant_id=tenant,
        resource=resource,
        client_id=config.client_id or variables["CLIENT_ID"],
        environment_secret=variables["CLIENT_SECRET"],
        endpoints=CloudEndpoints(
            directory=_base(agent.cloud_directory_url, cloud.directory),
            resource_manager=_base(agent.cloud_resource_manager_url, cloud.resource_manager),
            audience=cloud.audience,
            graph=_base(agent.cloud_graph_url, cloud.graph),
        ),
        graph_audience=cloud.graph,
        metadata_url=agent.cloud_metadata_url.rstrip("/"),
        token_file=config.token_file or variables["FEDERATED_TOKEN_FILE"],
    )


def _base(setting: str, default: str) -> str:
    return (setting or default).rstrip("/")


class _Environment:
    """Looks up environment variables by name without prefix; the value is empty if unset."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> str:
        neutral, vendor = _PREFIXES
        return self._variables.get(neutral + name) or self._variables.get(vendor + name, "")
