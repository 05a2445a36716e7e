"""System endpoints of the Vault API: health, seal, leader, and types of login methods."""

import msgspec

from daemon.identity.roles import METHODS
from daemon.version import VERSION
from daemon.web.reply import HandlerReply
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody, plain
from storage.errors import Malformed, NotFound
from storage.queries import installation, nodes, secrets
from storage.records.times import rfc3339


class _Health(msgspec.Struct, frozen=True, kw_only=True):
    initialized: bool = True
    sealed: bool = False
    standby: bool = False
    performance_standby: bool = False
    replication_performance_mode: str = "disabled"
    replication_dr_mode: str = "disabled"
    server_time_utc: int
    version: str = VERSION
    cluster_name: str
    cluster_id: str


class _Seal(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "shamir"
    initialized: bool = True
    sealed: bool = False
    t: int = 1
    n: int = 1
    progress: int = 0
    nonce: str = ""
    version: str = VERSION
    build_date: str = ""
    migration: bool = False
    cluster_name: str
    cluster_id: str
    recovery_seal: bool = False
    storage_type: str = "sqlite"


class _Leader(msgspec.Struct, frozen=True, kw_only=True):
    ha_enabled: bool = False
    is_self: bool = False
    active_time: str = "0001-01-01T00:00:00Z"
    leader_address: str = ""
    leader_cluster_address: str = ""


def _cluster(call: RouteCall) -> tuple[str, str]:
    """Return the name and the identifier of this installation."""
    identifier = call.parts.store.read(installation.cluster_id)
    return f"cluster-{identifier[:8]}", identifier


async def health(call: RouteCall) -> HandlerReply:
    """Report that the daemon works; `activecode` is the HTTP status of the response."""
    text = call.query.text("activecode", "200")
    if not (text.isdecimal() and len(text) == len("200") and int(text) >= 200):
        raise Malformed(f"activecode {text!r} is not a status code: use a number from 200 to 599")
    name, identifier = _cluster(call)
    now = call.parts.clock.now() // 1_000_000_000
    return plain(_Health(server_time_utc=now, cluster_name=name, cluster_id=identifier), int(text))


async def seal_status(call: RouteCall) -> HandlerReply:
    """Report that the store is not sealed: a running daemon can decrypt it."""
    name, identifier = _cluster(call)
    return plain(_Seal(cluster_name=name, cluster_id=identifier))


async def initialized(call: RouteCall) -> HandlerReply:  # every handler is async
    """Report that a store exists. The daemon creates the store when it starts."""
    return plain({"initialized": True})


async def leader(call: RouteCall) -> HandlerReply:  # every handler is async
    """Report that there is a single daemon, without a leader election."""
    return plain(_Leader())


async def ha_status(call: RouteCall) -> VaultBody:
    """Show the single daemon, which is active."""
    config = call.parts.config
    own_node = call.parts.store.read(lambda db: nodes.find(db, call.parts.tasks.node_id))
    is_secure = own_node is not None and own_node.tls_enabled
    address = f"http{'s' if is_secure else ''}://{config.bind}:{config.port}"
    node = {
        "hostname": config.node_name,
        "api_address": address,
        "cluster_address": address,
        "active_node": True,
        "last_echo": None,
        "version": VERSION,
    }
    return VaultBody(data={"nodes": [node]})


async def key_status(call: RouteCall) -> VaultBody:
    """Show the version of the store's latest data key, and the store's creation time."""
    keys, made_at = call.parts.store.read(
        lambda db: (secrets.data_keys(db), installation.created_at(db))
    )
    term = max((key.version for key in keys), default=1)
    return VaultBody(data={"term": term, "install_time": rfc3339(made_at), "encryptions": 0})


async def version_history(call: RouteCall) -> VaultBody:
    """Show the running version; the store does not record earlier versions."""
    made_at = call.parts.store.read(installation.created_at)
    entry = {
        "build_date": "",
        "previous_version": None,
        "timestamp_installed": rfc3339(made_at),
    }
    return VaultBody(data={"keys": [VERSION], "key_info": {VERSION: entry}})


async def audit_devices(call: RouteCall) -> VaultBody:  # every handler is async
    """List no devices: the audit log is a table of the store."""
    return VaultBody(data={})


async def openapi(call: RouteCall) -> HandlerReply:  # every handler is async
    """Describe the paths of the Vault API; `/v1/openapi.json` has the full description."""
    endpoint_paths = call.parts.rights().endpoint_paths
    paths: dict[str, object] = {path.removeprefix("/v1"): {} for path in endpoint_paths}
    info = {"title": "Steward", "version": VERSION}
    return plain({"openapi": "3.0.2", "info": info, "paths": paths, "components": {}})


async def catalog(call: RouteCall) -> VaultBody:  # every handler is async
    """List all types that can be mounted."""
    detailed = [_entry(kind) for kind in METHODS]
    return VaultBody(data={"auth": list(METHODS), "detailed": detailed})


async def list_methods(call: RouteCall) -> VaultBody:  # every handler is async
    """List the types of login methods."""
    return VaultBody(data={"keys": list(METHODS)})


async def read_method(call: RouteCall) -> VaultBody:
    """Describe one type of login method."""
    if call["plugin"] not in METHODS:
        raise NotFound("")
    return VaultBody(data=_entry(call["plugin"]))


def _entry(kind: str) -> dict[str, object]:
    return {
        "name": kind,
        "type": "auth",
        "builtin": True,
        "command": "",
        "args": None,
        "sha256": "",
        "version": f"v{VERSION}+builtin",
        "deprecation_status": "supported",
    }
