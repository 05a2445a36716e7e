"""The settings of the daemon, as one immutable record.

Every setting has one name: `data_dir` in the file, `STEWARD_DATA_DIR` in the environment,
`--data-dir` on the command line (`daemon/config/loading.py`). docs/configuration.md describes them all.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec

from daemon.config import data_directory
from storage.records.job_policy import JobPolicy
from storage.records.node import HostNetwork, HostVolume
from storage.records.notification import Receiver
from storage.records.pool import Pool

SOCKET_NAME = "steward.sock"
NO_SOCKET = "none"
ROOTS_PODMAN = "/run/podman/podman.sock"
NO_UIDS = "none"
# These numbers are above the accounts of people and services, and below the usual ranges for
# containers.
DEFAULT_UIDS = range(80_000, 90_000)
LEAST_UID = 1000
_UIDS = re.compile(r"(\d{1,10})-(\d{1,10})", re.ASCII)
# Actions for an allocation that uses more disk than its group requested.
DISK_OFF, DISK_NOTE, DISK_FAIL = "off", "note", "fail"
# Egress policies of tasks.
OPEN, GUARDED = "open", "guarded"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_MOST = 2**31 - 1  # limit of any number: its value in bytes or nanoseconds fits into 64 bits
Natural = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_CENTURIES = 100_000  # days (273 years); 64 bits can hold 292 years in nanoseconds
Days = Annotated[int, msgspec.Meta(ge=0, le=_CENTURIES)]
SomeDays = Annotated[int, msgspec.Meta(ge=1, le=_CENTURIES)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Rate = Annotated[int, msgspec.Meta(ge=1, le=1000)]  # per second


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the agent. The daemon determines the value of an empty or zero setting.

    A development daemon without a data directory uses a temporary one.
    """

    user: str = ""
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
    client_cpu_percent: Natural = 50
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
    usage_history: bool = True
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
    payload_max_mb: Natural = 1024
    payload_namespace_mb: Natural = 10_240
    thaw_per_second: Rate = 10
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
    job_max_versions: Natural = 1_000_000
    job_max_versions_mb: Natural = 4_096
    host_volumes: list[HostVolume] = []
    host_volume_paths: list[str] | None = None
    host_networks: list[HostNetwork] = []
    pools: dict[str, Pool] = {}
    wrapper_bind: str = ""
    wrapper_port: Port = 4690
    wrapper_url: str = ""
    wrapper_tls_cert: Path = Path()
    wrapper_tls_key: Path = Path()
    wrapper_ca: Path = Path()
    notify_commands: dict[str, list[str]] = {}
    notify_receivers: dict[str, Receiver] = {}
    notify_link: str = ""
    retention_notifications: Natural = 100
    otlp_url: str = ""
    otlp_token_file: Path = Path()
    otlp_percent: Percent = 100
    otlp_metrics_seconds: Natural = 60
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
    bridge_network_name: str = "steward"
    bridge_network_subnet: str = "172.26.64.0/20"
    cgroup_parent: str = ""
    podman_socket: str = ""
    podman_root: bool | None = None
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
        """Return the path of Podman's socket, or an empty string if the settings disable Podman."""
        if self.podman_socket:
            return "" if self.podman_socket == NO_SOCKET else self.podman_socket
        if os.geteuid() == 0 or self.podman_root:
            return ROOTS_PODMAN
        return (
            f"{os.environ.get('XDG_RUNTIME_DIR', f'/run/user/{os.geteuid()}')}/podman/podman.sock"
        )

    @property
    def alloc_dir(self) -> Path:
        """Return the parent of the allocation directories."""
        return data_directory.alloc_dir(self.data_dir)

    @property
    def groups_of(self) -> Path:
        """Return the path of the allocation directory in older versions.

        The names of cgroups derive from this path. Tasks that an older version started still run in
        cgroups with these names.
        """
        return self.data_dir / data_directory.ALLOC

    @property
    def volume_paths(self) -> tuple[str, ...]:
        """Return the directories below which the API may offer volumes."""
        usual = ["/"] if self.dev else []
        return tuple(usual if self.host_volume_paths is None else self.host_volume_paths)

    @property
    def volumes_dir(self) -> Path:
        """Return the parent of the volumes created through the API."""
        return data_directory.volumes_dir(self.data_dir)

    @property
    def logs_dir(self) -> Path:
        """Return the directory of logs that stay after their allocation directory is deleted."""
        return data_directory.logs_dir(self.data_dir)

    @property
    def output_dir(self) -> Path:
        """Return the directory of rotated logs and of container output."""
        return data_directory.output_dir(self.data_dir)

    @property
    def payloads_dir(self) -> Path:
        """Return the directory of the input files of jobs."""
        return data_directory.payloads_dir(self.data_dir)

    @property
    def store_dir(self) -> Path:
        """Return the directory of the store and of all other private data of the daemon."""
        return data_directory.store_dir(self.data_dir)

    @property
    def snapshots_dir(self) -> Path:
        """Return the directory of automatic snapshots."""
        return self.snapshot_dir if self.snapshot_dir != Path() else self.store_dir / "snapshots"

    @property
    def issuer(self) -> str:
        """Return the issuer URL of identity tokens."""
        return self.oidc_issuer or self.address

    @property
    def asks_for_tokens(self) -> bool:
        """Return whether requests need a token: by default always, except in development mode."""
        return self.acl if self.acl is not None else not self.dev

    @property
    def opens_filters(self) -> bool:
        """Return whether `exec` tasks may loosen their system call filter.

        By default, they may do so in development mode only.
        """
        return self.exec_unfiltered if self.exec_unfiltered is not None else self.dev

    @property
    def address(self) -> str:
        """Return the URL of the daemon's API."""
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}"

    @property
    def runs_raw_exec(self) -> bool:
        """Return whether `raw_exec` is enabled: by default only in development mode."""
        return self.dev if self.raw_exec is None else self.raw_exec

    @property
    def permits_root(self) -> bool:
        """Return whether tasks may run as root: by default only in development mode."""
        return self.dev if self.raw_exec_root is None else self.raw_exec_root

    @property
    def permitted_users(self) -> tuple[str, ...]:
        """Return the OS users that tasks may choose; `*` means all users except root."""
        return tuple(self.task_users) or (("*",) if self.dev else ("nobody",))

    @property
    def is_encrypted(self) -> bool:
        """Return whether the API port uses TLS."""
        return self.tls_cert != Path()

    @property
    def own_ports(self) -> frozenset[int]:
        """Return the ports of the listeners, including those of clusters and of the fake cloud."""
        public = {self.issuer_port} if self.issuer_bind else set()
        cloud = {self.dev_cloud_port} if self.dev_cloud else set()
        wrappers = {self.wrapper_port} if self.pools else set()
        return frozenset({self.port} | public | cloud | wrappers)

    @property
    def wrapper_host(self) -> str:
        """Return the address of the listener for cluster hosts."""
        return self.wrapper_bind or self.bind

    @property
    def certificate_files(self) -> list[Path]:
        """Return the paths of the certificate, key and CA files that the listeners use."""
        own = (self.tls_cert, self.tls_key, self.tls_client_ca)
        paths = (*own, self.wrapper_tls_cert, self.wrapper_tls_key)
        return [path for path in dict.fromkeys(paths) if path != Path()]

    @property
    def of_wrappers(self) -> "Settings":
        """Return the settings, with the TLS settings of the listener for cluster hosts.

        The listener has its own certificate, or uses that of the API. It requests no client
        certificates.
        """
        own = self.wrapper_tls_cert != Path()
        pair = {"tls_cert": self.wrapper_tls_cert, "tls_key": self.wrapper_tls_key} if own else {}
        return msgspec.structs.replace(self, tls_client_ca=Path(), **pair)

    @property
    def socket_path(self) -> Path | None:
        """Return the path of the operators' socket, or None if there is none."""
        if self.socket == NO_SOCKET:
            return None
        return Path(self.socket) if self.socket else self.data_dir / SOCKET_NAME

    @property
    def task_socket_path(self) -> Path:
        """Return the path of the socket for tasks. Requests on it need a token."""
        return self.data_dir / "tasks.sock"


FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def task_numbers(setting: str, subuids: str) -> range | None:
    """Return the user IDs for allocations: from the setting, else `/etc/subuid`, else the default.

    Return None if the setting disables these users. Raises `ValueError`.

    >>> task_numbers("80000-80009", ""), task_numbers("", "steward:200000:9")
    (range(80000, 80010), range(200000, 200009))
    """
    if setting == NO_UIDS:
        return None
    if setting:
        match = _UIDS.fullmatch(setting)
        first, last = map(int, match.groups()) if match else (0, 0)
        if not LEAST_UID <= first <= last < 2**32 - 2:
            raise ValueError(
                f'task_uids = "{setting}": write FIRST-LAST, such as 80000-89999, from {LEAST_UID} '
                f'on, or "{NO_UIDS}"'
            )
        return range(first, last + 1)
    # Root's lines are ignored: they serve containers, whose users would then share numbers with
    # tasks.
    for first, count in re.findall(r"^steward:(\d{1,10}):(\d{1,10})$", subuids, re.MULTILINE):
        if int(first) >= LEAST_UID and int(count):
            return range(int(first), int(first) + int(count))
    return DEFAULT_UIDS


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this host only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_data_dir(environment: Mapping[str, str], *, is_root: bool | None = None) -> Path:
    """Return the data directory for a daemon without this setting.

    The directory is `STATE_DIRECTORY` if systemd sets this variable. Otherwise, root has
    `/var/lib/steward`, and any other user has a directory in their home. `is_root` says whether
    root started the daemon. If `is_root` is None, the kernel is asked.
    """
    if state := environment.get("STATE_DIRECTORY"):  # set by systemd
        return Path(state)
    if os.geteuid() == 0 if is_root is None else is_root:
        return Path("/var/lib/steward")
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "steward"
