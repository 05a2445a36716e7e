"""Records for building jobs. Durations are in nanoseconds; `seconds(5)` returns 5 s in this unit.

A field that is not set is not sent, so it gets the server's default.
"""

import msgspec

from steward_client.wire import Definition


class Constraint(Definition, frozen=True, kw_only=True):
    """A condition that a node must satisfy, such as `${attr.kernel.name}` `=` `linux`."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""


class Affinity(Definition, frozen=True, kw_only=True):
    """A condition that raises (weight > 0) or lowers (weight < 0) the score of a node."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""
    weight: int | None = None


class SpreadTarget(Definition, frozen=True, kw_only=True):
    """The desired percentage of allocations on nodes with this attribute value."""

    value: str
    percent: int


class Spread(Definition, frozen=True, kw_only=True):
    """A preference to distribute allocations over the values of a node attribute."""

    attribute: str
    weight: int | None = None
    spread_target: list[SpreadTarget] = []


class Resources(Definition, frozen=True, kw_only=True):
    """The resources of a task: CPU in MHz or whole cores, memory in MB."""

    cpu: int | None = None
    cores: int | None = None
    memory_mb: int | None = None
    memory_max_mb: int | None = None


class RestartPolicy(Definition, frozen=True, kw_only=True):
    """The restart policy: restarts of an ended task in the same allocation."""

    attempts: int | None = None
    interval: int | None = None
    delay: int | None = None
    mode: str | None = None


class ReschedulePolicy(Definition, frozen=True, kw_only=True):
    """The reschedule policy: new placements of a failed allocation."""

    attempts: int | None = None
    interval: int | None = None
    delay: int | None = None
    delay_function: str | None = None
    max_delay: int | None = None
    unlimited: bool | None = None


class Update(Definition, frozen=True, kw_only=True):
    """The update strategy: the replacement of an old version by a new version."""

    max_parallel: int | None = None
    health_check: str | None = None
    min_healthy_time: int | None = None
    healthy_deadline: int | None = None
    progress_deadline: int | None = None
    auto_revert: bool | None = None
    auto_promote: bool | None = None
    canary: int | None = None


class EphemeralDisk(Definition, frozen=True, kw_only=True):
    """The disk limit of an allocation in MB, and whether its replacement inherits the data."""

    sticky: bool | None = None
    size_mb: int | None = None
    migrate: bool | None = None


class Port(Definition, frozen=True, kw_only=True):
    """A port with a label. `value` is a static port on the node, `to` the port inside the task."""

    label: str
    value: int | None = None
    to: int | None = None
    host_network: str | None = None


class Network(Definition, frozen=True, kw_only=True):
    """The network of a group."""

    mode: str | None = None
    reserved_ports: list[Port] = []
    dynamic_ports: list[Port] = []


class Check(Definition, frozen=True, kw_only=True):
    """A health check of a service."""

    name: str | None = None
    type: str
    path: str | None = None
    command: str | None = None
    args: list[str] = []
    port_label: str | None = None
    interval: int | None = None
    timeout: int | None = None
    method: str | None = None
    header: dict[str, list[str]] = {}
    body: str | None = None


class Service(Definition, frozen=True, kw_only=True):
    """A service that is registered while its allocation runs."""

    name: str
    port_label: str | None = None
    tags: list[str] = []
    meta: dict[str, str] = {}
    checks: list[Check] = []
    provider: str | None = None
    address_mode: str | None = None


class Template(Definition, frozen=True, kw_only=True):
    """A file rendered for the task. `embedded_tmpl` is the text of the template."""

    dest_path: str
    embedded_tmpl: str | None = None
    source_path: str | None = None
    change_mode: str | None = None
    change_signal: str | None = None
    perms: str | None = None
    envvars: bool | None = None


class Artifact(Definition, frozen=True, kw_only=True):
    """A file or archive to download into the task's directory before the task starts."""

    getter_source: str
    getter_options: dict[str, str] = {}
    getter_headers: dict[str, str] = {}
    getter_mode: str | None = None
    relative_dest: str | None = None


class Volume(Definition, frozen=True, kw_only=True):
    """A volume that the tasks of a group may mount."""

    name: str
    type: str
    source: str
    read_only: bool | None = None
    access_mode: str | None = None
    attachment_mode: str | None = None


class VolumeMount(Definition, frozen=True, kw_only=True):
    """The mount of a group's volume in the task."""

    volume: str
    destination: str
    read_only: bool | None = None


class Identity(Definition, frozen=True, kw_only=True):
    """A workload identity token of the task."""

    name: str | None = None
    audience: list[str] = []
    env: bool | None = None
    file: bool | None = None
    ttl: int | None = None


class Action(Definition, frozen=True, kw_only=True):
    """A command that may be run inside the task on request."""

    name: str
    command: str
    args: list[str] = []


class LogConfig(Definition, frozen=True, kw_only=True):
    """The limits on the retained output of a task."""

    max_files: int | None = None
    max_file_size_mb: int | None = None
    disabled: bool | None = None


class Lifecycle(Definition, frozen=True, kw_only=True):
    """The time at which a task runs, relative to the main tasks.

    `hook` is `prestart`, `poststart` or `poststop`.
    """

    hook: str
    sidecar: bool | None = None


class DispatchPayload(Definition, frozen=True, kw_only=True):
    """The file in the task's `local` directory that receives a dispatch's payload."""

    file: str


class Task(Definition, frozen=True, kw_only=True):
    """A command, run by a driver."""

    name: str
    driver: str
    config: dict[str, object] = {}
    user: str | None = None
    env: dict[str, str] = {}
    meta: dict[str, str] = {}
    resources: Resources | None = None
    restart_policy: RestartPolicy | None = None
    services: list[Service] = []
    templates: list[Template] = []
    artifacts: list[Artifact] = []
    constraints: list[Constraint] = []
    affinities: list[Affinity] = []
    volume_mounts: list[VolumeMount] = []
    dispatch_payload: DispatchPayload | None = None
    lifecycle: Lifecycle | None = None
    identity: Identity | None = None
    identities: list[Identity] = []
    actions: list[Action] = []
    log_config: LogConfig | None = None
    kill_timeout: int | None = None
    kill_signal: str | None = None
    shutdown_delay: int | None = None
    leader: bool | None = None


class Group(Definition, frozen=True, kw_only=True):
    """Tasks that share a node, a directory and a network. The job runs `count` copies of them."""

    name: str
    tasks: list[Task]
    count: int | None = None
    meta: dict[str, str] = {}
    constraints: list[Constraint] = []
    affinities: list[Affinity] = []
    spreads: list[Spread] = []
    update: Update | None = None
    restart_policy: RestartPolicy | None = None
    reschedule_policy: ReschedulePolicy | None = None
    ephemeral_disk: EphemeralDisk | None = None
    networks: list[Network] = []
    services: list[Service] = []
    volumes: dict[str, Volume] = {}
    shutdown_delay: int | None = None
    max_run_duration: int | None = None


class Periodic(Definition, frozen=True, kw_only=True):
    """The schedule of a periodic job: cron expressions and their time zone."""

    specs: list[str]
    spec_type: str | None = None
    time_zone: str | None = None
    prohibit_overlap: bool | None = None
    enabled: bool | None = None


class Parameterized(Definition, frozen=True, kw_only=True):
    """The inputs of a dispatch. `payload` is `optional`, `required` or `forbidden`."""

    payload: str | None = None
    meta_required: list[str] = []
    meta_optional: list[str] = []


class Job(Definition, frozen=True, kw_only=True):
    """A job: `type` is service, batch, system or sysbatch."""

    id: str
    groups: list[Group] = msgspec.field(name="TaskGroups")
    name: str | None = None
    namespace: str | None = None
    type: str | None = None
    priority: int | None = None
    datacenters: list[str] = []
    node_pool: str | None = None
    all_at_once: bool | None = None
    constraints: list[Constraint] = []
    affinities: list[Affinity] = []
    spreads: list[Spread] = []
    update: Update | None = None
    periodic: Periodic | None = None
    parameterized: Parameterized | None = msgspec.field(default=None, name="ParameterizedJob")
    meta: dict[str, str] = {}


class ParsedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the server parsed from a job file. `document` has all fields of the job."""

    id: str
    namespace: str
    type: str
    document: msgspec.Raw
    source: str = ""
    variables: str = ""
    variable_flags: dict[str, str] = {}


AnyJob = Job | ParsedJob
