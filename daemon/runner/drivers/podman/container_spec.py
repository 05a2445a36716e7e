"""Build podman's container specification from a task's driver configuration. No I/O.

The settings are the most frequently used settings of the `docker` driver. A setting that weakens
the isolation of the container is rejected, unless the agent's configuration permits it.
"""

import base64
import os
import re
import stat
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from daemon.runner.core.driver import Attempt, InvalidConfig, StartFailed
from daemon.runner.core.task_dir import SECRETS, SHARED
from daemon.runner.drivers import driver_config
from daemon.runner.drivers.limits import ResourceLimits
from storage.records import durations
from storage.records.numbers import parse_integer
from storage.records.task import NetworkDNS

LABEL = "io.steward"
HOME = "/local"
_NETWORKS = ("bridge", "host", "none", "pasta", "private", "slirp4netns")
_PRIVATE = frozenset({"", "private"})
# Capabilities that a task may add: those of ordinary containers (Nomad's list).
_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_UNFIT = re.compile(r"[^A-Za-z0-9_]")
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_OWN = f"/{SHARED}", HOME, f"/{SECRETS}"


class PodmanConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The driver configuration of `podman` and `docker`."""

    image: str
    command: str = ""
    args: list[str] = []
    entrypoint: list[str] = []
    ports: list[str] = []
    volumes: list[str] = []
    labels: dict[str, str] = {}
    auth: dict[str, str] = {}
    force_pull: bool = False
    image_pull_timeout: str = "5m"
    work_dir: str = ""
    working_dir: str = ""
    network_mode: str = ""
    hostname: str = ""
    extra_hosts: list[str] = []
    dns_servers: list[str] = []
    dns_search_domains: list[str] = []
    dns_options: list[str] = []
    cap_add: list[str] = []
    cap_drop: list[str] = []
    readonly_rootfs: bool = False
    init: bool = False
    tty: bool = False
    interactive: bool = False
    pids_limit: int = 0
    shm_size: str = ""
    tmpfs: list[str] = []
    ulimit: dict[str, str] = {}
    group_add: list[str] = []
    privileged: bool = False
    pid_mode: str = ""
    ipc_mode: str = ""
    uts_mode: str = ""
    userns_mode: str = ""


def check(settings: PodmanConfig, *, volumes: bool) -> None:
    """Raise `InvalidConfig` for settings that are not permitted.

    With `volumes`, any host path may be bind-mounted.
    """
    if settings.privileged:
        raise InvalidConfig("privileged: not supported, containers run unprivileged")
    for name in ("pid_mode", "ipc_mode", "uts_mode", "userns_mode"):
        if (mode := getattr(settings, name)) not in _PRIVATE:
            raise InvalidConfig(f"{name} {mode!r}: only private is supported")
    if settings.network_mode and settings.network_mode not in _NETWORKS:
        raise InvalidConfig(
            f"network_mode {settings.network_mode!r}: choose one of {', '.join(_NETWORKS)}"
        )
    added = {capability.upper().removeprefix("CAP_") for capability in settings.cap_add}
    if refused := sorted(added - _CAPABILITIES):
        raise InvalidConfig(
            f"cap_add {refused}: only {', '.join(sorted(_CAPABILITIES))} are permitted"
        )
    if settings.volumes and not volumes:
        raise InvalidConfig(
            "volumes: host paths need podman_volumes = true in the agent's configuration;"
            ' without this setting, mount a volume of the type "host" with volume_mount'
        )
    try:
        durations.nanoseconds(settings.image_pull_timeout)
    except ValueError as error:
        raise InvalidConfig(f"image_pull_timeout: {error}") from error
    _size(settings.shm_size)


def full_name(image: str) -> str:
    """Return the full name of an image. The default registry is Docker Hub.

    >>> [full_name(one) for one in ("redis:7", "a/b", "docker://redis", "localhost/x", "r.io/a")]
    ['docker.io/library/redis:7', 'docker.io/a/b', 'docker.io/library/redis', 'localhost/x', 'r.io/a']
    """
    image = image.removeprefix("docker://")
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    is_registry = "." in first or ":" in first or first == "localhost"
    return image if is_registry else f"docker.io/{image}"


def credentials(settings: PodmanConfig) -> list[tuple[str, str]]:
    """Return the request header with the registry credentials; empty without credentials."""
    auth = {name: text for name, text in settings.auth.items() if text}
    if not auth:
        return []
    account = {"username": auth.get("username", ""), "password": auth.get("password", "")}
    if server := auth.get("server_address"):
        account["serveraddress"] = server
    encoded = base64.urlsafe_b64encode(msgspec.json.encode(account)).decode()
    return [("x-registry-auth", encoded)]


def container_name(attempt: Attempt) -> str:
    """Return the name of an attempt's container.

    The name depends only on the attempt, so a repeated start does not create a second container.
    """
    task = _UNFIT.sub("-", attempt.task)
    if task != attempt.task:  # the shortened name may collide with another task's
        task += f"-{blake2b(attempt.task.encode(), digest_size=4).hexdigest()}"
    return f"steward-{attempt.alloc_id}-{task}-{attempt.number}"


def labels_of(alloc_id: str, directory: str) -> dict[str, str]:
    """Return the labels of an allocation's containers; `directory` is the allocation directory."""
    return {f"{LABEL}.alloc": alloc_id, f"{LABEL}.directory": directory}


def container(
    attempt: Attempt, settings: PodmanConfig, limits: ResourceLimits, log: str
) -> dict[str, object]:
    """Return the container specification; `log` is the output file.

    Raises the same errors as `Driver.start`.
    """
    if attempt.network_mode == "bridge" and not settings.network_mode:
        raise InvalidConfig(
            'a container cannot join the network of a group with mode "bridge"; to use podman\'s '
            'own bridge instead, set network_mode = "bridge" in the task\'s config, and list the '
            "ports there"
        )
    network = settings.network_mode or ("none" if attempt.network_mode == "none" else "bridge")
    spec: dict[str, object] = {
        "name": container_name(attempt),
        "image": settings.image.removeprefix("docker://"),
        "env": dict(attempt.env),
        "labels": {
            **settings.labels,
            **labels_of(attempt.alloc_id, attempt.directory),
            f"{LABEL}.task": attempt.task,
        },
        "mounts": [*_mounts(attempt, settings)],
        "netns": {"nsmode": network},
        "cap_add": [
            f"CAP_{capability.upper().removeprefix('CAP_')}" for capability in settings.cap_add
        ],
        "cap_drop": [
            f"CAP_{capability.upper().removeprefix('CAP_')}" for capability in settings.cap_drop
        ],
        "no_new_privileges": True,
        "read_only_filesystem": settings.readonly_rootfs,
        "restart_policy": "no",
        "systemd": "false",
        "terminal": settings.tty,
        "stdin": settings.interactive,
        "init": settings.init,
        "log_configuration": {"driver": "k8s-file", "path": log},
        "resource_limits": _resources(settings, limits),
    }
    words = [settings.command] if settings.command else []
    optional = {
        "command": [*words, *settings.args],
        "entrypoint": settings.entrypoint,
        "work_dir": settings.work_dir or settings.working_dir,
        "user": attempt.user,
        "hostname": settings.hostname,
        "groups": settings.group_add,
        "hostadd": settings.extra_hosts,
        "shm_size": _size(settings.shm_size),
        "portmappings": [*_ports(attempt, settings)] if network != "host" else [],
        "r_limits": [*_ulimits(settings)],
        **_names(attempt, settings, network),
    }
    return spec | {name: value for name, value in optional.items() if value}


def _names(attempt: Attempt, settings: PodmanConfig, network: str) -> dict[str, object]:
    """Return the DNS settings; empty on the host's network, where podman rejects them."""
    if network in {"host", "none"} and attempt.dns is None:
        return {}
    dns = attempt.dns or NetworkDNS()
    servers = settings.dns_servers or dns.servers or []
    searches = settings.dns_search_domains or dns.searches or []
    options = settings.dns_options or dns.options or []
    driver_config.check_names(NetworkDNS(servers=servers, searches=searches, options=options))
    return {"dns_server": servers, "dns_search": searches, "dns_option": options}


def _resources(settings: PodmanConfig, limits: ResourceLimits) -> dict[str, object]:
    cpu: dict[str, object] = {"shares": limits.shares}
    if limits.cores:
        cpu["cpus"] = limits.cpus
    resources: dict[str, object] = {"cpu": cpu}
    if limits.memory_max:
        memory = {"limit": limits.memory_max, "swap": limits.memory_max}
        if limits.memory < limits.memory_max:
            memory["reservation"] = limits.memory
        resources["memory"] = memory
    processes = limits.processes
    if settings.pids_limit > 0:
        processes = min(settings.pids_limit, processes or settings.pids_limit)
    if processes:
        resources["pids"] = {"limit": processes}
    return resources


def _ports(attempt: Attempt, settings: PodmanConfig) -> Iterator[dict[str, object]]:
    """Yield the port mappings from host to container. Raises `InvalidConfig`."""
    ports = {port.label: port for port in attempt.ports}
    for label in settings.ports:
        port = ports.get(label)
        if port is None:
            raise InvalidConfig(f"ports: {label!r} is not declared in the group's network block")
        for protocol in ("tcp", "udp"):
            yield {
                "container_port": port.to if port.to > 0 else port.value,
                "host_port": port.value,
                "host_ip": port.host_ip,
                "protocol": protocol,
            }


def _mounts(attempt: Attempt, settings: PodmanConfig) -> Iterator[dict[str, object]]:
    """Yield the mounts of the container. Raises `InvalidConfig` or `StartFailed`."""
    home = f"{attempt.directory}/{attempt.task}"
    yield _bind(f"{attempt.directory}/{SHARED}", f"/{SHARED}", "rw")
    # A separate mount, so that no task can replace the logs that the daemon reads and writes.
    yield _bind(f"{attempt.directory}/{SHARED}/logs", f"/{SHARED}/logs", "ro")
    yield _bind(f"{home}/local", HOME, "rw")
    yield _bind(f"{home}/{SECRETS}", f"/{SECRETS}", "rw")
    for mount in attempt.mounts:
        target = os.path.normpath(f"/{mount.destination}").replace("//", "/")
        if target == "/" or any(f"{target}/".startswith(f"{own}/") for own in _OWN):
            raise InvalidConfig(f"volume {mount.name!r} cannot be mounted at {mount.destination!r}")
        if _is_missing(mount.source):
            raise StartFailed(f"volume {mount.name!r} is not a directory on this host: create it")
        yield _bind(mount.source, target, "ro" if mount.read_only else "rw")
    for text in settings.volumes:
        source, colon, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        if not source or not colon or not target.startswith("/") or mode not in {"", "ro", "rw"}:
            raise InvalidConfig(
                f"volumes: {text!r} must be SOURCE:/DESTINATION or SOURCE:/DESTINATION:ro"
            )
        yield _bind(os.path.normpath(os.path.join(home, source)), target, mode or "rw")
    for target in settings.tmpfs:
        yield {"type": "tmpfs", "destination": target, "source": "tmpfs", "options": ["nosuid"]}


def _is_missing(source: str) -> bool:
    """Return whether a directory is missing; false if the daemon lacks permission to check."""
    try:
        return not stat.S_ISDIR(os.stat(source).st_mode)
    except PermissionError:
        return False
    except OSError:
        return True


def _bind(source: str, destination: str, mode: str) -> dict[str, object]:
    return {
        "type": "bind",
        "source": source,
        "destination": destination,
        "options": [mode, "rbind", "rprivate", "nosuid", "nodev"],
    }


def _ulimits(settings: PodmanConfig) -> Iterator[dict[str, object]]:
    for name, text in settings.ulimit.items():
        soft, _, hard = text.partition(":")
        try:
            numbers = parse_integer(soft), parse_integer(hard or soft)
        except ValueError as error:
            raise InvalidConfig(f"ulimit: {name} = {text!r}: write SOFT or SOFT:HARD") from error
        yield {"type": f"RLIMIT_{name.upper()}", "soft": numbers[0], "hard": numbers[1]}


def _size(text: str) -> int:
    """Parse a size such as 64m into bytes; 0 for an empty string. Raises `InvalidConfig`."""
    match = re.fullmatch(r"(\d{1,12})([kmg]?)b?", text.lower())
    if text and match is None:
        raise InvalidConfig(f"shm_size: {text!r} is not a size such as 64m")
    return int(match[1]) * _SIZES[match[2]] if match else 0
