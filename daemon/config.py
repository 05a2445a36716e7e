"""The settings of a daemon: one frozen object.

Every setting has one name: `data_dir` in the file, `STEWARD_DATA_DIR` in the environment,
`--data-dir` on the command line (`daemon/loading.py`). docs/configuration.md describes them all.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec

from daemon import datadir
from storage.records.node import HostNetwork, HostVolume
from storage.records.pool import Pool
from storage.records.rule import JobPolicy

SOCKET_NAME = "steward.sock"
NO_SOCKET = "none"
NO_UIDS = "none"
# Beyond the accounts of people and services, and below what systems hand out to containers.
DEFAULT_UIDS = range(80_000, 90_000)
LEAST_UID = 1000
_UIDS = re.compile(r"(\d{1,10})-(\d{1,10})", re.ASCII)
# What becomes of an allocation that takes more disk than its group asked for.
DISK_OFF, DISK_NOTE, DISK_FAIL = "off", "note", "fail"
# Which addresses tasks reach.
OPEN, GUARDED = "open", "guarded"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_MOST = 2**31 - 1  # of anything: what is counted in bytes or nanoseconds then fits into 64 bits
Natural = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_CENTURIES = 100_000  # days, 273 years: beyond 292 there is no time in nanoseconds
Days = Annotated[int, msgspec.Meta(ge=0, le=_CENTURIES)]
SomeDays = Annotated[int, msgspec.Meta(ge=1, le=_CENTURIES)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of the agent. What is empty or 0 is found out by the daemon itself.

    In development without a data directory, one is made for the daemon's life.
    """

    data_dir: Path = Path()
    key_file: Path = Path()
    ask_passphrase: bool = False
    bind: str = "127.0.0.1"
    port: Port = 4646
    allow_plain_text: bool = False
    tls_cert: Path = Path()
    tls_key: Path = Path()
    tls_client_ca: Path = Path()
    socket: str = ""
    operator_group: str = ""
    lean_door: bool = True
    host_names: list[str] = []
    trusted_proxies: list[str] = []
    connections_per_address: Natural = 100
    connections_per_user: Natural = 2000
    lockout_threshold: Natural = 300
    lockout_seconds: Positive = 900
    region: str = "global"
    datacenter: str = "dc1"
    node_name: str = ""
    node_class: str = ""
    node_pool: str = "default"
    node_meta: dict[str, str] = {}
    cpu_total_mhz: Natural = 0
    memory_total_mb: Natural = 0
    disk_total_mb: Natural = 0
    oidc_issuer: str = ""
    identity_claims: dict[str, str] = {}
    issuer_bind: str = ""
    issuer_port: Port = 4680
    retention_days: Days = 90
    retention_jobs: Natural = 0
    retention_alloc_days: SomeDays = 90
    retention_allocs: Natural = 1000
    retention_alloc_mb: Natural = 10_000
    retention_evals: Natural = 1000
    retention_deployments: Natural = 1000
    retention_event_days: SomeDays = 90
    retention_events: Natural = 100_000
    gc_interval_seconds: Positive = 60
    gc_max_allocs: Natural = 1000
    gc_disk_usage_threshold: Percent = 90
    gc_inode_usage_threshold: Percent = 90
    log_retention_days: Days = 30
    log_retention_mb: Natural = 1000
    alloc_disk_limit: str = DISK_NOTE
    alloc_disk_seconds: Positive = 60
    snapshot_hours: Days = 0
    snapshot_keep: Positive = 7
    snapshot_dir: Path = Path()
    audit_retention_days: Days = 365
    audit_retention_entries: Natural = 0
    audit_file: Path = Path()
    audit_journal: bool = False
    audit_reads: bool = False
    artifact_paths: list[str] = []
    artifact_max_mb: Natural = 10_000
    artifact_max_files: Natural = 4096
    artifact_seconds: Natural = 1800
    job_policies: list[JobPolicy] = []
    job_max_count: Natural = 50_000
    job_max_groups: Natural = 2_000
    job_max_tasks: Natural = 5_000
    job_max_specs: Natural = 100
    job_max_constraints: Natural = 20_000
    job_max_services: Natural = 5_000
    job_max_checks: Natural = 5_000
    job_max_ports: Natural = 5_000
    job_max_templates: Natural = 5_000
    job_max_kb: Natural = 4_096
    host_volumes: list[HostVolume] = []
    host_networks: list[HostNetwork] = []
    pools: dict[str, Pool] = {}
    wrapper_bind: str = ""
    wrapper_port: Port = 4690
    wrapper_url: str = ""
    wrapper_tls_cert: Path = Path()
    wrapper_tls_key: Path = Path()
    wrapper_ca: Path = Path()
    notify_commands: dict[str, list[str]] = {}
    retention_notifications: Natural = 100
    metrics_public: bool | None = None
    keep_token_secrets: bool = False
    raw_exec: bool | None = None
    raw_exec_user: str = ""
    raw_exec_root: bool | None = None
    raw_exec_limits: bool = False
    task_users: list[str] = []
    user_denylist: list[str] = []
    user_checked_drivers: list[str] = []
    denied_host_uids: str = ""
    denied_host_gids: str = ""
    task_environment: list[str] = []
    exec_unfiltered: bool | None = None
    task_uids: str = ""
    task_processes: Natural = 4096
    task_egress: str = OPEN
    cgroup_parent: str = ""
    podman_socket: str = ""
    podman_volumes: bool = False
    cloud_directory_url: str = ""
    cloud_resource_manager_url: str = ""
    cloud_graph_url: str = ""
    cloud_metadata_url: str = "http://169.254.169.254"
    cloud_login_seconds: Natural = 90
    cloud_lookup_seconds: Natural = 0
    cloud_keys_refresh_seconds: Natural = 12 * 3600
    cloud_keys_max_age_seconds: Natural = 7 * 86400
    cloud_keys_pause_seconds: Natural = 30
    cloud_old_keys_seconds: Natural = 0
    dev: bool = False
    dev_cloud: bool = False
    dev_cloud_port: Port = 4670
    acl: bool | None = None
    log_level: str = "info"
    log_format: str = "text"

    @property
    def podman_service(self) -> str:
        """Return the socket at which podman is looked for; nothing: nowhere."""
        if self.podman_socket:
            return "" if self.podman_socket == NO_SOCKET else self.podman_socket
        if os.geteuid() == 0:
            return "/run/podman/podman.sock"
        return (
            f"{os.environ.get('XDG_RUNTIME_DIR', f'/run/user/{os.geteuid()}')}/podman/podman.sock"
        )

    @property
    def alloc_dir(self) -> Path:
        """Return the directory that holds a directory for each allocation."""
        return datadir.alloc_dir(self.data_dir)

    @property
    def groups_of(self) -> Path:
        """Return by what groups of processes are named: where allocations lay in older versions.

        Groups of tasks that run on have that name.
        """
        return self.data_dir / datadir.ALLOC

    @property
    def logs_dir(self) -> Path:
        """Return the directory of logs whose allocation has none any more."""
        return datadir.logs_dir(self.data_dir)

    @property
    def store_dir(self) -> Path:
        """Return the directory of the store, and of all else that is the daemon's alone."""
        return datadir.store_dir(self.data_dir)

    @property
    def snapshots_dir(self) -> Path:
        """Return the directory of the snapshots that the daemon saves by itself."""
        return self.snapshot_dir if self.snapshot_dir != Path() else self.store_dir / "snapshots"

    @property
    def issuer(self) -> str:
        """Return the address that identity tokens name as their issuer."""
        return self.oidc_issuer or self.address

    @property
    def asks_for_tokens(self) -> bool:
        """Tell whether tokens are asked for: always, unless this is for development."""
        return self.acl if self.acl is not None else not self.dev

    @property
    def opens_filters(self) -> bool:
        """Tell whether tasks of `exec` may open their filter: in development, unless it says no."""
        return self.exec_unfiltered if self.exec_unfiltered is not None else self.dev

    @property
    def address(self) -> str:
        """Return the address at which the daemon answers."""
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}"

    @property
    def runs_raw_exec(self) -> bool:
        """Tell whether tasks of raw_exec may start: in development, or where the settings say so."""
        return self.dev if self.raw_exec is None else self.raw_exec

    @property
    def permits_root(self) -> bool:
        """Return whether tasks may run as root: in development, or where the settings say so."""
        return self.dev if self.raw_exec_root is None else self.raw_exec_root

    @property
    def permitted_users(self) -> tuple[str, ...]:
        """Return the users of the machine that tasks may choose: `*` is everybody but root."""
        return tuple(self.task_users) or (("*",) if self.dev else ("nobody",))

    @property
    def is_encrypted(self) -> bool:
        """Tell whether connections to the port are encrypted."""
        return self.tls_cert != Path()

    @property
    def wrapper_host(self) -> str:
        """Return where what runs on clusters is listened to."""
        return self.wrapper_bind or self.bind

    @property
    def of_wrappers(self) -> "Config":
        """Return the settings with the certificate of that listener: its own if it has one."""
        own = self.wrapper_tls_cert != Path()
        pair = {"tls_cert": self.wrapper_tls_cert, "tls_key": self.wrapper_tls_key} if own else {}
        return msgspec.structs.replace(self, tls_client_ca=Path(), **pair)

    @property
    def socket_path(self) -> Path | None:
        """Return where operators of this machine connect; None: nowhere."""
        if self.socket == NO_SOCKET:
            return None
        return Path(self.socket) if self.socket else self.data_dir / SOCKET_NAME

    @property
    def task_socket_path(self) -> Path:
        """Return where tasks connect: they have to show a token there."""
        return self.data_dir / "tasks.sock"


FIELDS = {field.name: field for field in msgspec.structs.fields(Config)}


def task_numbers(setting: str, subuids: str) -> range | None:
    """Return the users for allocations: of the setting, or of our lines of `/etc/subuid`.

    None: there are none. Raises `ValueError`.

    >>> task_numbers("80000-80009", ""), task_numbers("", "steward:200000:9"), task_numbers("none", "")
    (range(80000, 80010), range(200000, 200009), None)
    """
    if setting == NO_UIDS:
        return None
    if setting:
        found = _UIDS.fullmatch(setting)
        first, last = map(int, found.groups()) if found else (0, 0)
        if not LEAST_UID <= first <= last < 2**32 - 2:
            raise ValueError(
                f'task_uids = "{setting}": write FIRST-LAST, such as 80000-89999, from {LEAST_UID} '
                f'on, or "{NO_UIDS}"'
            )
        return range(first, last + 1)
    # Lines of root's are for containers: their users would be those of tasks.
    for first, count in re.findall(r"^steward:(\d{1,10}):(\d{1,10})$", subuids, re.MULTILINE):
        if int(first) >= LEAST_UID and int(count):
            return range(int(first), int(first) + int(count))
    return DEFAULT_UIDS


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_data_dir(environment: Mapping[str, str]) -> Path:
    """Return where the data lives: the service's directory for root, else the user's."""
    if state := environment.get("STATE_DIRECTORY"):  # set by systemd
        return Path(state)
    if os.geteuid() == 0:
        return Path("/var/lib/steward")
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "steward"
