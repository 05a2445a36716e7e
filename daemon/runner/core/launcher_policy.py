"""Convert the settings into the `LauncherPolicy`, the permissions that the launcher enforces."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from daemon.config.settings import Settings, task_numbers
from daemon.confinement import bpf, filters
from daemon.launcher.messages import AllowedVolume, LauncherPolicy, Span
from daemon.runner.core.bridge_rules import bridge_of
from storage.records.numbers import Ranges, ranges
from storage.records.pool import Pool

NO_GROUPS: Mapping[str, Any] = MappingProxyType(
    {"groups": [], "raw_exec_groups": [], "exec_groups": []}
)
NOBODY = "nobody"
# Client programs of a cluster.
PROGRAMS = ("sbatch", "squeue", "scancel", "srun", "sinfo", "scontrol")
CHECKED = ("exec", "raw_exec")  # drivers with a `user_denylist`
_SUBUIDS = "/etc/subuid"
_LAST = 2**32 - 1  # the highest user number


def subuids() -> str:
    """Return the text of `/etc/subuid`, which assigns subordinate user IDs; empty if missing."""
    try:
        return Path(_SUBUIDS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def usual_user(config: Settings) -> str:
    """Return the default user of raw_exec tasks; empty means the daemon's own user."""
    return config.raw_exec_user or ("" if config.permits_root else NOBODY)


def policy_of(
    config: Settings,
    owner: int,
    lines: str,
    groups: Mapping[str, Any] = NO_GROUPS,
    *,
    path: str = "",
) -> LauncherPolicy:
    """Return the launcher policy of a configuration; `owner` is the daemon's user.

    `lines` is the text of `/etc/subuid`. `groups` has the policy fields that list the parent
    cgroups of tasks. `path` is the search path for the programs of clusters. In `config`, `port`
    must be the port on which the daemon listens, because the rules of the bridge contain this port.
    Raises `ValueError` for invalid user or group IDs.
    """
    own = task_numbers(config.task_uids, lines)
    return LauncherPolicy(
        **filters_of(),
        owner=owner,
        is_dev=config.dev,
        users=[*config.permitted_users],
        usual=usual_user(config),
        permits_root=config.permits_root,
        denied=config.user_denylist,
        checked=config.user_checked_drivers or [*CHECKED],
        denied_uids=_spans(ranges(config.denied_host_uids)),
        denied_gids=_spans(ranges(config.denied_host_gids)),
        own_uids=None if own is None else (own.start, own.stop - 1),
        runs_raw_exec=config.runs_raw_exec,
        opens_filters=config.opens_filters,
        volumes=[
            AllowedVolume(
                name=host_volume.name, path=host_volume.path, read_only=host_volume.read_only
            )
            for host_volume in config.host_volumes
        ],
        processes=config.task_processes,
        holds_raw_exec=config.raw_exec_limits,
        **groups,
        volume_roots=[
            os.path.realpath(volume_path)
            for volume_path in (*config.volume_paths, str(config.volumes_dir))
        ],
        files=[str(certificate_file) for certificate_file in config.certificate_files],
        podman=config.podman_service if config.podman_root else "",
        commands=config.notify_commands,
        **programs_of(config.pools, path),
        bridge=bridge_of(config),
    )


def programs_of(pools: Mapping[str, Pool], path: str) -> dict[str, Any]:
    """Return the policy fields with the programs of clusters; empty without pools."""
    program_paths = {name: find_program(name, path) for name in PROGRAMS if pools}
    return {
        "programs": {
            name: program for name, program in program_paths.items() if program is not None
        },
        "cluster_configs": sorted({pool.cluster_config for pool in pools.values()} - {""}),
    }


def find_program(name: str, path: str) -> str | None:
    """Return the absolute path of a program in a search path, or None."""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if os.path.isabs(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def filters_of() -> dict[str, Any]:
    """Return the policy fields with the system call filters for tasks."""
    try:
        machine = bpf.host_architecture()
    except bpf.Unknown as error:
        return {"filter": b"", "wide_filter": b"", "no_filter": str(error)}
    wide = filters.of_tasks(machine, user_namespaces=True)
    return {"filter": filters.of_tasks(machine), "wide_filter": wide, "no_filter": ""}


def _spans(id_ranges: Ranges) -> list[Span]:
    return [
        (id_range.start, min(id_range.stop - 1, _LAST))
        for id_range in id_ranges
        if id_range.start <= _LAST
    ]
