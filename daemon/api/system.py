"""What the secrets side says about itself: health, seal, leader, and the methods that there are."""

import msgspec

from daemon.identity.roles import METHODS
from daemon.version import VERSION
from daemon.web.envelope import Answer, plain
from daemon.web.reply import Reply
from daemon.web.request import Call
from storage.errors import Malformed, NotFound
from storage.queries import installation, secrets
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


def _cluster(call: Call) -> tuple[str, str]:
    """Return the name of this installation, and its identifier."""
    identifier = call.parts.store.read(installation.cluster_id)
    return f"cluster-{identifier[:8]}", identifier


async def health(call: Call) -> Reply:
    """Tell that the daemon works; `activecode` is the status to tell it with."""
    text = call.query.text("activecode", "200")
    if not (text.isdecimal() and len(text) == len("200") and int(text) >= 200):
        raise Malformed(f"activecode {text!r} is no status: a number from 200 to 599")
    name, identifier = _cluster(call)
    now = call.parts.clock.now() // 1_000_000_000
    return plain(_Health(server_time_utc=now, cluster_name=name, cluster_id=identifier), int(text))


async def seal_status(call: Call) -> Reply:
    """Tell that nothing is sealed: a daemon that runs can read what it keeps."""
    name, identifier = _cluster(call)
    return plain(_Seal(cluster_name=name, cluster_id=identifier))


async def initialized(call: Call) -> Reply:  # a handler
    """Tell that there is a store: a daemon makes it when it starts."""
    return plain({"initialized": True})


async def leader(call: Call) -> Reply:  # a handler
    """Tell that there is one daemon, and nothing to lead."""
    return plain(_Leader())


async def key_status(call: Call) -> Answer:
    """Show the newest data key of the store: its version, and when the store was made."""
    keys, made_at = call.parts.store.read(
        lambda db: (secrets.data_keys(db), installation.created_at(db))
    )
    term = max((key.version for key in keys), default=1)
    return Answer(data={"term": term, "install_time": rfc3339(made_at), "encryptions": 0})


async def version_history(call: Call) -> Answer:
    """Show the version that runs; the store does not record earlier ones."""
    made_at = call.parts.store.read(installation.created_at)
    shown = {
        "build_date": "",
        "previous_version": None,
        "timestamp_installed": rfc3339(made_at),
    }
    return Answer(data={"keys": [VERSION], "key_info": {VERSION: shown}})


async def audit_devices(call: Call) -> Answer:  # a handler
    """List no devices: the audit log is a table of the store."""
    return Answer(data={})


async def openapi(call: Call) -> Reply:  # a handler
    """Describe the paths of this side; `/v1/openapi.json` says more."""
    known = call.parts.rights.endpoint_paths
    paths: dict[str, object] = {path.removeprefix("/v1"): {} for path in known}
    info = {"title": "Steward", "version": VERSION}
    return plain({"openapi": "3.0.2", "info": info, "paths": paths, "components": {}})


async def catalog(call: Call) -> Answer:  # a handler
    """List everything that can be mounted."""
    detailed = [_entry(kind) for kind in METHODS]
    return Answer(data={"auth": list(METHODS), "detailed": detailed})


async def list_methods(call: Call) -> Answer:  # a handler
    """List the types of login methods."""
    return Answer(data={"keys": list(METHODS)})


async def read_method(call: Call) -> Answer:
    """Describe one type of login method."""
    if call["plugin"] not in METHODS:
        raise NotFound("")
    return Answer(data=_entry(call["plugin"]))


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
