"""Build the environment of a task and interpolate `${…}` in its definition. No I/O.

The rules are Nomad's (source: Nomad's recorded responses `task-environment`). The agent's
environment comes first, then the allocation's variables, then the task's variables. Later variables
override earlier ones. Steward differs in one point: only allow-listed variables of the agent's
environment reach a task.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from storage.records.allocation import AllocatedPort, Allocation, NetworkStatus
from storage.records.job import Job
from storage.records.node import Node
from storage.records.task import Task

_REFERENCE = re.compile(r"\$\{(?:env\[\"([^\"]+)\"\]|([\w.\-]+(?:\[\d{1,5}\][\w.]+)?))\}", re.ASCII)
_OWN_KEYS = "steward_"
_WILDCARDS = frozenset("*?[")  # wildcards of `fnmatchcase`
_UNFIT = re.compile(r"^[0-9]|[^A-Za-z0-9_.]")  # Nomad replaces these characters of names

# Variables of the agent that every task inherits; `task_environment` adds to them.
_PASSED_ON = (
    *("PATH", "LANG", "LC_*", "TZ", "TERM", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"),
    *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
)


class TaskDirectories(msgspec.Struct, frozen=True, kw_only=True):
    """The directories of a task, as paths that the task sees."""

    shared: str
    local: str
    secrets: str


def inherited_environment(
    environment: Mapping[str, str], names: Iterable[str] = (), *, bundled: bool
) -> dict[str, str]:
    """Return the agent's variables that tasks inherit: those in the default list and in `names`.

    A `*` in a name is a wildcard. A `bundled` agent (a single-file executable) changes its library
    path, but tasks inherit the original path.
    """
    allowed = {*_PASSED_ON, *names}
    # Compiling a pattern is slow.
    patterns = [name for name in allowed if not _WILDCARDS.isdisjoint(name)]
    variables = dict(environment)
    if bundled:
        variables.pop("LD_LIBRARY_PATH", None)
    original = variables.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is not None:
        variables["LD_LIBRARY_PATH"] = original
    return {
        name: value
        for name, value in variables.items()
        if name in allowed or any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def node_values(node: Node, region: str) -> dict[str, str]:
    """Return the interpolation values of a node by reference name."""
    return {
        **{f"attr.{name}": value for name, value in node.attributes.items()},
        **{f"meta.{name}": value for name, value in node.meta.items()},
        "node.unique.id": node.id,
        "node.unique.name": node.name,
        "node.datacenter": node.datacenter,
        "node.class": node.node_class,
        "node.pool": node.node_pool,
        "node.region": region,
    }


def task_environment(
    base: Mapping[str, str],
    allocation: Allocation,
    job: Job,
    task: Task,
    directories: TaskDirectories,
    values: Mapping[str, str],
    *,
    parent_cgroup: str = "",
) -> dict[str, str]:
    """Return the environment of a task.

    `values` has the values of the node, and `base` the variables from the agent's environment.
    """
    environment = dict(base)
    environment |= _allocation_variables(allocation, job, task, directories)
    environment["NOMAD_DC"] = values.get("node.datacenter", "")
    environment["NOMAD_REGION"] = values.get("node.region", "")
    if parent_cgroup:
        environment["NOMAD_PARENT_CGROUP"] = parent_cgroup
    environment |= _limits(allocation, task)
    for port in allocation.placement.resources.ports_of(task.name):
        environment |= _port(port)
    meta = _meta(job, allocation, task)
    environment |= {name: resolve(text, environment, values) for name, text in meta.items()}
    own = {name: resolve(text, environment, values) for name, text in (task.env or {}).items()}
    return environment | {variable_name(name): text for name, text in own.items()}


def variable_name(text: str) -> str:
    """Return a valid name of an environment variable: invalid characters become underscores."""
    return _UNFIT.sub("_", text)


def _allocation_variables(
    allocation: Allocation, job: Job, task: Task, directories: TaskDirectories
) -> dict[str, str]:
    variables = {
        "NOMAD_ALLOC_DIR": directories.shared,
        "NOMAD_TASK_DIR": directories.local,
        "NOMAD_SECRETS_DIR": directories.secrets,
        "NOMAD_ALLOC_ID": allocation.id,
        "NOMAD_SHORT_ALLOC_ID": allocation.id[:8],
        "NOMAD_ALLOC_NAME": allocation.name,
        "NOMAD_ALLOC_INDEX": str(allocation.index),
        "NOMAD_TASK_NAME": task.name,
        "NOMAD_GROUP_NAME": allocation.task_group,
        "NOMAD_JOB_ID": job.id,
        "NOMAD_JOB_NAME": job.name,
        "NOMAD_NAMESPACE": allocation.namespace,
    }
    if job.parent_id:
        variables["NOMAD_JOB_PARENT_ID"] = job.parent_id
    return variables


def _limits(allocation: Allocation, task: Task) -> dict[str, str]:
    allocated = allocation.placement.resources.tasks.get(task.name)
    if allocated is None:
        return {}
    limits = {
        "NOMAD_CPU_LIMIT": str(allocated.cpu.cpu_shares),
        "NOMAD_CPU_CORES": ",".join(map(str, allocated.cpu.reserved_cores or ())),
        "NOMAD_MEMORY_LIMIT": str(allocated.memory.memory_mb),
    }
    if allocated.memory.memory_max_mb:
        limits["NOMAD_MEMORY_MAX_LIMIT"] = str(allocated.memory.memory_max_mb)
    return limits


def _meta(job: Job, allocation: Allocation, task: Task) -> dict[str, str]:
    """Return the variables for the meta keys of job, group and task.

    Each key yields two variables: one with the key as written, and one with the key in upper case.
    Keys that Steward defines are omitted, because their values can be too long for a variable.
    """
    group = job.group(allocation.task_group)
    merged = {**(job.meta or {}), **((group and group.meta) or {}), **(task.meta or {})}
    meta: dict[str, str] = {}
    for key, value in merged.items():
        if key.startswith(_OWN_KEYS):
            continue
        meta[variable_name(f"NOMAD_META_{key.upper()}")] = value
        meta[variable_name(f"NOMAD_META_{key}")] = value
    return meta


def _port(port: AllocatedPort) -> dict[str, str]:
    label = port.label
    host = f"[{port.host_ip}]" if ":" in port.host_ip else port.host_ip
    address, inside = f"{host}:{port.value}", str(port.to if port.to > 0 else port.value)
    variables = {
        f"NOMAD_ADDR_{label}": address,
        f"NOMAD_HOST_ADDR_{label}": address,
        f"NOMAD_IP_{label}": port.host_ip,
        f"NOMAD_HOST_IP_{label}": port.host_ip,
        f"NOMAD_PORT_{label}": inside,
        f"NOMAD_ALLOC_PORT_{label}": inside,
        f"NOMAD_HOST_PORT_{label}": str(port.value),
    }
    return {variable_name(name): value for name, value in variables.items()}


def network_variables(
    allocation: Allocation, task: Task, network: NetworkStatus | None
) -> dict[str, str]:
    """For each port, return the variables with the allocation's interface and IP on the bridge."""
    variables: dict[str, str] = {}
    for port in allocation.placement.resources.ports_of(task.name) if network else ():
        assert network is not None  # noqa: S101  # for the type checker
        label, inside = port.label, port.to if port.to > 0 else port.value
        variables |= {
            f"NOMAD_ALLOC_INTERFACE_{label}": network.interface_name,
            f"NOMAD_ALLOC_IP_{label}": network.address,
            f"NOMAD_ALLOC_ADDR_{label}": f"{network.address}:{inside}",
        }
    return {variable_name(name): value for name, value in variables.items()}


def resolve(text: str, environment: Mapping[str, str], values: Mapping[str, str]) -> str:
    """Interpolate a text; an unknown reference stays as it is.

    `${X}` and `${env["X"]}` are variables; `${attr.x}`, `${meta.x}` and `${node.x}` are values of
    the node. `${each.value.x}` is a field of the list item, or empty if the item has no such field.
    """

    def replace(match: re.Match[str]) -> str:
        variable, name = match.groups()
        if variable is not None:
            return environment.get(variable, match[0])
        variable_value = environment.get(name)
        is_field = name.startswith("each.value.") and "each.value" in values
        return (
            variable_value
            if variable_value is not None
            else values.get(name, "" if is_field else match[0])
        )

    return _REFERENCE.sub(replace, text)


def resolve_config(
    config: object, environment: Mapping[str, str], values: Mapping[str, str]
) -> object:
    """Interpolate all strings in a task's driver configuration."""
    if isinstance(config, str):
        return resolve(config, environment, values)
    if isinstance(config, list):
        return [resolve_config(element, environment, values) for element in config]
    if isinstance(config, dict):
        return {
            str(name): resolve_config(member, environment, values)
            for name, member in config.items()
        }
    return config


_NAME = re.compile(r"[^\s=\0]+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}


def pairs(text: str, most: int | None = None) -> dict[str, str]:
    r"""Parse environment variables, one per line.

    Raises `ValueError` for an invalid line, or for more than `most` variables.

    >>> pairs("# note\nA=1\nexport B = \"x y\" # more\n")
    {'A': '1', 'B': 'x y'}
    """
    variables = dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        name, equals, value = bare.removeprefix("export ").partition("=")
        if not equals or not _NAME.fullmatch(name.strip()) or "\0" in value:
            raise ValueError(f"line {number} of the environment is not of the form NAME=value")
        variables[name.strip()] = _value(value.strip(), number)
        if most is not None and len(variables) > most:
            raise ValueError(f"line {number} exceeds the maximum of {most} variables")
    return variables


def _value(written: str, number: int) -> str:
    mark = written[:1]
    if mark not in ("'", '"'):
        return re.split(r"\s#", written)[0].strip()
    body = re.match(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", written)
    rest = written[body.end() :].strip() if body else ""
    if body is None or (rest and not rest.startswith("#")):
        raise ValueError(f"unterminated quotes on line {number} of the environment")
    if body[1] is not None:
        return body[1]
    return _ESCAPED.sub(lambda match: _MEANT.get(match[1], match[1]), body[2])
