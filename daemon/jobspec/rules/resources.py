"""Validation of a task's resources: CPU, memory, devices and disk space for logs."""

from collections.abc import Iterator

from daemon.jobspec.rules.constraints import DISTINCT, affinity, constraint, each
from daemon.text.go_format import join_errors, quote, wrap_error
from storage.records.constraints import Constraint
from storage.records.group import EphemeralDisk
from storage.records.task import Device, LogConfig, Resources

MIN_CPU = 1  # MHz
MIN_MEMORY = 10  # MB
MIN_DISK = 10  # MB
NO_MEMORY_LIMIT = -1

_NUMA_AFFINITIES = frozenset({"none", "prefer", "require"})


def resources(request: Resources) -> Iterator[str]:
    """Yield the errors of the resources of a task."""
    if request.cores > 0 and request.cpu > 0:
        yield "Task can only ask for 'cpu' or 'cores' resource, not both."
    if request.cores < 0:
        yield f"cores value ({request.cores}) cannot be negative"
    yield from join_errors(_least(request))
    for number, device in enumerate(request.devices or (), 1):
        yield from wrap_error(f"device {number} failed validation", _device(device))
    yield from _numa(request)
    yield from _memory(request)


def _least(request: Resources) -> Iterator[str]:
    if request.cpu < MIN_CPU and request.cores == 0:
        yield f"minimum CPU value is {MIN_CPU}; got {request.cpu}"
    if request.memory_mb < MIN_MEMORY:
        yield f"minimum MemoryMB value is {MIN_MEMORY}; got {request.memory_mb}"


def _numa(request: Resources) -> Iterator[str]:
    if request.numa is None:
        return
    devices = {device.name for device in request.devices or ()}
    for name in request.numa.devices or ():
        if name not in devices:
            yield f"numa device {quote(name)} not requested as task resource"
    if request.numa.affinity not in _NUMA_AFFINITIES:
        yield "numa affinity must be one of none, prefer, or require"


def _memory(request: Resources) -> Iterator[str]:
    most, least, secrets = request.memory_max_mb, request.memory_mb, request.secrets_mb
    if most not in (0, NO_MEMORY_LIMIT) and most < least:
        yield f"MemoryMaxMB value ({most}) should be larger than MemoryMB value ({least})"
    if secrets > least:
        yield f"SecretsMB value ({secrets}) cannot be larger than MemoryMB value ({least})"
    if secrets < 0:
        yield f"SecretsMB value ({secrets}) cannot be negative"


def _device(device: Device) -> Iterator[str]:
    if not device.name:
        yield (
            "device name must be given as one of the following: "
            "type, vendor/type, or vendor/type/name"
        )
    for number, device_constraint in enumerate(device.constraints or (), 1):
        yield from _device_constraint(number, device_constraint)
    yield from each("Affinity", device.affinities, affinity)


def _device_constraint(number: int, device_constraint: Constraint) -> Iterator[str]:
    subject = f"Constraint {number} validation failed"
    if device_constraint.operand in DISTINCT:
        yield f"{subject}: using unsupported operand {quote(device_constraint.operand)}"
    else:
        yield from wrap_error(subject, constraint(device_constraint))


def disk(ephemeral_disk: EphemeralDisk) -> Iterator[str]:
    """Yield the errors of the disk of a group."""
    if ephemeral_disk.size_mb < MIN_DISK:
        yield f"minimum DiskMB value is {MIN_DISK}; got {ephemeral_disk.size_mb}"


def logs(config: LogConfig, of_group: EphemeralDisk) -> Iterator[str]:
    """Yield the errors of a task's log limits; logs share the group's disk."""
    if config.max_files < 1:
        yield f"minimum number of files is 1; got {config.max_files}"
    if config.max_file_size_mb < 1:
        yield f"minimum file size is 1MB; got {config.max_file_size_mb}"
    most = config.max_files * config.max_file_size_mb
    if of_group.size_mb <= most:
        yield (
            f"log storage ({most} MB) must be less than requested disk capacity "
            f"({of_group.size_mb} MB)"
        )
