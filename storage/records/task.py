"""The task: a command with its resources, and the blocks that make it a service."""

from enum import StrEnum

from msgspec import UNSET, UnsetType

from storage.records.base import SECOND, Duration, Record, SparseRecord, Uint64
from storage.records.constraints import Affinity, Constraint
from storage.records.scaling import Scaling


class Hook(StrEnum):
    """The hook of a lifecycle block: the time of a task relative to the main tasks."""

    PRESTART = "prestart"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


class RestartPolicy(Record, frozen=True, kw_only=True):
    """The restart policy: the rules for restarting an ended task in place."""

    attempts: int = 0
    interval: Duration = 0
    delay: Duration = 0
    mode: str = ""
    render_templates: bool = False


class Port(SparseRecord, frozen=True, kw_only=True):
    """A port by label. `value` 0 requests a dynamic port. `to` is the port number in the task."""

    label: str = ""
    value: int = 0
    to: int = 0
    host_network: str = ""
    ignore_collision: bool = False


class NetworkDNS(Record, frozen=True, kw_only=True):
    """Name resolution in a network namespace."""

    servers: list[str] | None = None
    searches: list[str] | None = None
    options: list[str] | None = None


class NetworkCNI(Record, frozen=True, kw_only=True):
    """Arguments for a network plugin."""

    args: dict[str, str] | None = None


class Network(SparseRecord, frozen=True, kw_only=True):
    """The network that a group requests, or the network of an allocation."""

    mode: str = ""
    device: str = ""
    cidr: str = ""
    ip: str = ""
    hostname: str = ""
    mbits: int = 0
    dns: NetworkDNS | None = None
    cni: NetworkCNI | None = None
    reserved_ports: list[Port] | None = None
    dynamic_ports: list[Port] | None = None


class Device(Record, frozen=True, kw_only=True):
    """A request for devices of a kind, such as `gpu` or `vendor/gpu/model`."""

    name: str = ""
    count: Uint64 = 1
    constraints: list[Constraint] | None = None
    affinities: list[Affinity] | None = None


class NUMA(Record, frozen=True, kw_only=True):
    """The required proximity of a task's cores."""

    affinity: str = "none"
    devices: list[str] | None = None


class Resources(Record, frozen=True, kw_only=True):
    """The resources of a task: CPU in MHz or whole cores, memory and disk in MB."""

    cpu: int = 100
    cores: int = 0
    memory_mb: int = 300
    memory_max_mb: int = 0
    disk_mb: int = 0
    iops: int = 0
    networks: list[Network] | None = None
    devices: list[Device] | None = None
    numa: NUMA | None = None
    secrets_mb: int = 0


class LogConfig(Record, frozen=True, kw_only=True):
    """The retained output of a task: `max_files` files of `max_file_size_mb` each."""

    max_files: int = 10
    max_file_size_mb: int = 10
    disabled: bool = False


class Lifecycle(Record, frozen=True, kw_only=True):
    """The lifecycle of a task: it runs before, alongside or after the main tasks."""

    hook: str = ""
    sidecar: bool = False


class DispatchPayload(Record, frozen=True, kw_only=True):
    """The file in the task's local directory that receives a dispatch's payload."""

    file: str = ""


class Action(Record, frozen=True, kw_only=True):
    """A command that may be run inside the task on request."""

    name: str = ""
    command: str = ""
    args: list[str] | None = None


class Artifact(Record, frozen=True, kw_only=True):
    """A download into the task's directory before it starts."""

    getter_source: str = ""
    getter_options: dict[str, str] | None = None
    getter_headers: dict[str, str] | None = None
    getter_mode: str = "any"
    getter_insecure: bool = False
    relative_dest: str = "local/"
    chown: bool = False


class ChangeScript(Record, frozen=True, kw_only=True):
    """A command that runs inside the task when a template has changed."""

    command: str = ""
    args: list[str] | None = None
    timeout: Duration = 5 * SECOND
    fail_on_error: bool = False
    run_on_first_render: bool = False


class WaitConfig(Record, frozen=True, kw_only=True):
    """Bounds of the time for which a template waits for further changes."""

    min: Duration | None = None
    max: Duration | None = None


class Template(Record, frozen=True, kw_only=True):
    """A file rendered for the task, and its change action."""

    source_path: str = ""
    dest_path: str = ""
    embedded_tmpl: str = ""
    change_mode: str = "restart"
    change_signal: str = ""
    change_script: ChangeScript | None = None
    once: bool = False
    splay: Duration = 5 * SECOND
    perms: str = "0644"
    uid: int | None = None
    gid: int | None = None
    left_delim: str = "{{"
    right_delim: str = "}}"
    envvars: bool = False
    wait: WaitConfig | None = None
    err_missing_key: bool = False
    vault_grace: Duration = 0


class VolumeMount(Record, frozen=True, kw_only=True):
    """The mount of a group's volume in the task."""

    volume: str = ""
    destination: str = ""
    read_only: bool = False
    propagation_mode: str = "private"
    selinux_label: str = ""


class SecretsConfig(Record, frozen=True, kw_only=True):
    """The task's request for a Vault token (`vault` in job files)."""

    policies: list[str] | UnsetType | None = UNSET  # stored if not empty
    role: str = ""
    namespace: str = ""
    cluster: str = "default"
    env: bool = True
    disable_file: bool = False
    change_mode: str = "restart"
    change_signal: str = ""
    allow_token_expiration: bool = False


class Consul(Record, frozen=True, kw_only=True):
    """The service discovery namespace of a group or task."""

    namespace: str = ""
    cluster: str = "default"
    partition: str = ""


class Identity(Record, frozen=True, kw_only=True):
    """A workload identity token of the task or a service."""

    name: str = ""
    audience: list[str] | None = None
    change_mode: str = ""
    change_signal: str = ""
    env: bool = False
    file: bool = False
    filepath: str = ""
    service_name: str = ""
    ttl: Duration = 0
    extra_claims: list[str] | None = None


class Secret(Record, frozen=True, kw_only=True):
    """A named secret for the task."""

    name: str = ""
    provider: str = ""
    path: str = ""
    config: dict[str, object] | None = None
    env: dict[str, str] | None = None


class Schedule(Record, frozen=True, kw_only=True):
    """The times at which a task may run."""

    cron: dict[str, str] | None = None


class CSIPluginConfig(Record, frozen=True, kw_only=True):
    """The block that makes a task a storage plugin. Steward stores it without effect."""

    id: str = ""
    type: str = ""
    mount_dir: str = ""
    stage_publish_base_dir: str = ""
    health_timeout: Duration = 0


class CheckRestart(Record, frozen=True, kw_only=True):
    """The rule by which failing checks restart a task."""

    limit: int = 0
    grace: Duration | None = None
    ignore_warnings: bool = False


class Check(Record, frozen=True, kw_only=True):
    """A service check."""

    name: str = ""
    type: str = ""
    command: str = ""
    args: list[str] | None = None
    path: str = ""
    protocol: str = ""
    port_label: str = ""
    address_mode: str = ""
    advertise: str | UnsetType = UNSET  # accepted but not stored
    expose: bool = False
    interval: Duration = 0
    timeout: Duration = 0
    initial_status: str = ""
    notes: str = ""
    tls_server_name: str = ""
    tls_skip_verify: bool = False
    method: str = ""
    header: dict[str, list[str]] | None = None
    body: str = ""
    check_restart: CheckRestart | None = None
    grpc_service: str = ""
    grpc_use_tls: bool = False
    task_name: str = ""
    success_before_passing: int = 0
    failures_before_critical: int = 0
    failures_before_warning: int = 0
    on_update: str = ""


class Weights(Record, frozen=True, kw_only=True):
    """The share of traffic for a service instance."""

    passing: int = 0
    warning: int = 0


class Service(Record, frozen=True, kw_only=True):
    """A service that is registered while its allocation runs."""

    name: str = ""
    task_name: str = ""
    port_label: str = ""
    address: str = ""
    address_mode: str = "auto"
    tags: list[str] | None = None
    canary_tags: list[str] | None = None
    enable_tag_override: bool = False
    meta: dict[str, str] | None = None
    canary_meta: dict[str, str] | None = None
    tagged_addresses: dict[str, str] | None = None
    checks: list[Check] | None = None
    check_restart: CheckRestart | UnsetType | None = UNSET  # moved into the checks
    connect: dict[str, object] | None = None
    on_update: str = "require_healthy"
    identity: Identity | None = None
    provider: str = "consul"
    cluster: str = "default"
    kind: str = ""
    weights: Weights | None = None
    namespace: str = ""


class Task(Record, frozen=True, kw_only=True):
    """A command, run by a driver."""

    name: str = ""
    driver: str = ""
    user: str = ""
    config: dict[str, object] | None = None
    env: dict[str, str] | None = None
    services: list[Service] | None = None
    secrets_config: SecretsConfig | None = None
    consul: Consul | None = None
    templates: list[Template] | None = None
    constraints: list[Constraint] | None = None
    affinities: list[Affinity] | None = None
    resources: Resources = Resources()
    restart_policy: RestartPolicy = RestartPolicy()
    dispatch_payload: DispatchPayload | None = None
    lifecycle: Lifecycle | None = None
    meta: dict[str, str] | None = None
    kill_timeout: Duration = 5 * SECOND
    log_config: LogConfig = LogConfig()
    artifacts: list[Artifact] | None = None
    leader: bool = False
    shutdown_delay: Duration = 0
    volume_mounts: list[VolumeMount] | None = None
    kill_signal: str = ""
    kind: str = ""
    csi_plugin_config: CSIPluginConfig | None = None
    identity: Identity | None = None
    identities: list[Identity] | None = None
    actions: list[Action] | None = None
    schedule: Schedule | None = None
    secrets: list[Secret] | None = None
    scaling_policies: list[Scaling] | None = None
