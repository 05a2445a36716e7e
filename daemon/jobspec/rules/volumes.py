"""Validation of a group's volume requests and its tasks' volume mounts."""

from collections.abc import Iterator

from daemon.text.go_format import quote
from storage.records.group import TaskGroup, Volume
from storage.records.job import JobType
from storage.records.task import VolumeMount

_READERS = frozenset({"single-node-reader-only", "multi-node-reader-only"})
_HOST_MODES = frozenset(
    {
        "",
        "single-node-reader-only",
        "single-node-writer",
        "single-node-single-writer",
        "single-node-multi-writer",
    }
)
# Access modes that limit a storage plugin's volume to one allocation.
_ONE_USER = {
    "single-node-reader-only": "reader",
    "single-node-writer": "reader or writer",
    "multi-node-single-writer": "writer",
}
_PROPAGATION = frozenset({"", "private", "host-to-task", "bidirectional"})
_LABELS = frozenset({"", "z", "Z"})


def volume(request: Volume, group: TaskGroup, job_type: str) -> Iterator[str]:
    """Yield the errors of a volume of a group."""
    if not request.source:
        yield "volume has an empty source"
    if request.per_alloc:
        yield from _per_allocation(request, group, job_type)
    if request.type == "host":
        yield from _on_host(request)
    else:
        yield from _by_plugin(request, group.count)


def mount(volume_mount: VolumeMount) -> Iterator[str]:
    """Yield the errors of a mount, without checking whether its volume exists."""
    if not volume_mount.volume:
        yield "volume mount references an empty volume"
    if volume_mount.propagation_mode not in _PROPAGATION:
        mode = quote(volume_mount.propagation_mode)
        modes = ", ".join(sorted(filter(None, _PROPAGATION)))
        yield f"volume mount has an invalid propagation mode: {mode}, must be one of {modes}"
    if volume_mount.selinux_label not in _LABELS:
        yield (
            f'volume mount has an invalid SELinux label: "{volume_mount.selinux_label}", must be z '
            "or Z"
        )


def _per_allocation(request: Volume, group: TaskGroup, job_type: str) -> Iterator[str]:
    if job_type in (JobType.SYSTEM, JobType.SYSBATCH):
        yield "volume cannot be per_alloc for system or sysbatch jobs"
    if group.update and group.update.canary > 0:
        yield "volume cannot be per_alloc when canaries are in use"
    if request.sticky:
        yield "volume cannot be per_alloc and sticky at the same time"


def _on_host(request: Volume) -> Iterator[str]:
    if request.mount_options is not None:
        yield "host volumes cannot have mount options"
    if request.access_mode not in _HOST_MODES:
        modes = ", ".join(sorted(filter(None, _HOST_MODES)))
        yield (
            f"host volumes cannot be mounted with {request.access_mode} access mode, only with one "
            f"of {modes}"
        )
    else:
        yield from _read_only(request)


def _by_plugin(request: Volume, count: int) -> Iterator[str]:
    if not request.attachment_mode:
        yield "CSI volumes must have an attachment mode"
    if request.attachment_mode == "block-device" and request.mount_options is not None:
        yield "block devices cannot have mount options"
    if not request.access_mode:
        yield "CSI volumes must have an access mode"
    yield from _read_only(request)
    users = _ONE_USER.get(request.access_mode)
    # Readers are unlimited if there is only one writer.
    harmless = users == "writer" and request.read_only
    if users and not harmless and count > 1 and not request.per_alloc:
        yield f"volume with {request.access_mode} access mode allows only one {users}"


def _read_only(request: Volume) -> Iterator[str]:
    if request.access_mode in _READERS and not request.read_only:
        yield f"{request.access_mode} volumes must be read-only"
