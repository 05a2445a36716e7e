"""Host setup: drivers, the daemon's file descriptor limit, and node registration."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.config.data_directory import STAGING
from daemon.config.settings import Settings
from daemon.launcher.client import Launcher
from daemon.net import egress_policy
from daemon.runner.core.driver import Driver, Fingerprint
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.drivers.raw_exec import RawExecDriver
from daemon.runner.fingerprint import fingerprint
from daemon.runner.task_containment import TaskCgroups
from storage.errors import StorageUnavailable, StorageUnreadable, StorageUnusable
from storage.queries import nodes
from storage.records.base import SECOND
from storage.records.driver import spellings
from storage.records.node import Node, NodeEvent
from storage.records.times import rfc3339
from storage.store import Store

if TYPE_CHECKING:
    from daemon.runner.setup.artifacts.fetch import ArtifactFetcher
    from daemon.runner.setup.artifacts.git_sandbox import GitSandbox
    from daemon.runner.setup.file_keeper import FileKeeper

_MEGABYTE = 1024 * 1024
_SHOWN_EVENTS = 10  # stored events of a node, as in Nomad

_log = logging.getLogger("steward.runner")


async def drivers_of(
    holding: TaskCgroups,
    inherited: Mapping[str, str],
    launcher: Launcher,
    config: Settings,
) -> tuple[dict[str, Driver], dict[str, Fingerprint]]:
    """Return the drivers of this host by name, and the fingerprints of drivers by name.

    If the host has no Podman, only the fingerprints include Podman.
    """
    most = config.task_processes
    walled = (holding.limited, inherited, launcher, holding.bounds, most)
    raw = walled if config.raw_exec_limits else (holding.groups, inherited, launcher)
    found_drivers: list[Driver] = [
        RawExecDriver(*raw, enabled=config.runs_raw_exec),
        ExecDriver(*walled, unfiltered=config.opens_filters),
    ]
    missing = await why_no_podman(config)
    if not missing:
        # Imported late: many hosts have no Podman.
        from daemon.runner.drivers.podman import driver as podman

        found_drivers += await podman.find(
            config.podman_service,
            inherited,
            launcher.connect if config.podman_root else None,
            volumes=config.podman_volumes,
            processes=most,
        )
    if config.dev:
        found_drivers.append(MockDriver())
    drivers = {driver.name: driver for driver in found_drivers}
    absent = dict.fromkeys(spellings("podman"), Fingerprint(trouble=missing)) if missing else {}
    return drivers, {**absent, **fingerprints(drivers)}


def fingerprints(drivers: Mapping[str, Driver]) -> dict[str, Fingerprint]:
    """Return the fingerprints of drivers by name."""
    return {name: driver.fingerprint() for name, driver in drivers.items()}


async def why_no_podman(config: Settings) -> str:
    """Return why this host has no Podman.

    The result is empty if the host has Podman, or if only the launcher can find that out.
    """
    socket = config.podman_service
    if not socket:
        return "the setting podman_socket is none"
    if config.podman_root or await trio.to_thread.run_sync(os.path.exists, socket):
        return ""
    return f"there is no podman socket at {socket}"


def fetcher_of(
    config: Settings, git_sandbox: "Callable[[], GitSandbox] | None" = None
) -> "ArtifactFetcher":
    """Return the artifact fetcher with the configured limits."""
    # Imported late: many daemons run no task with artifacts.
    from daemon.runner.setup.artifacts.archive import ArchiveLimits
    from daemon.runner.setup.artifacts.fetch import ArtifactFetcher

    return ArtifactFetcher(
        staging=str(config.store_dir / STAGING),
        payloads=str(config.payloads_dir),
        limits=ArchiveLimits(
            bytes=config.artifact_max_mb * _MEGABYTE, files=config.artifact_max_files
        ),
        seconds=config.artifact_seconds,
        files_from=tuple(os.path.realpath(path) for path in config.artifact_paths),
        own_ports=egress_policy.own_ports(config),
        git_sandbox=git_sandbox,
    )


def git_sandbox_of(
    config: Settings,
    launcher: Launcher,
    holding: TaskCgroups,
    ids: Iterator[str],
    present: set[str],
) -> "GitSandbox":
    """Return the object that opens sandboxes for git; `present` has their allocation IDs."""
    # Imported late: few daemons clone repositories.
    from daemon.runner.setup.artifacts.git_sandbox import GitSandbox

    driver = ExecDriver(holding.limited, {}, launcher, holding.bounds, config.task_processes)
    return GitSandbox(
        launcher, driver, str(config.alloc_dir), ids, present, seconds=config.artifact_seconds
    )


def git_isolation(config: Settings, launcher: Launcher, *, has_root: bool) -> tuple[bool, str]:
    """Return whether git runs in its own sandbox, and the reason if it does not.

    `has_root` means that the launcher runs as root.
    """
    if problem := launcher.walls.walls:
        return False, f"git runs with the daemon's rights: {problem}"
    if config.dev or not has_root:
        mode = "in development mode" if config.dev else "without root"
        return False, f"git runs with the daemon's rights {mode}"
    return True, "git runs in a sandbox, as a separate user"


def file_keeper_of(config: Settings, store: Store) -> "FileKeeper":
    """Return the object that keeps files of ended tasks, with the configured limits."""
    # Imported late: many daemons run no task whose files are kept.
    from daemon.jobs.payload_files import PayloadFiles, PayloadLimits
    from daemon.runner.setup.file_keeper import FileKeeper

    files = PayloadFiles(store, str(config.payloads_dir), PayloadLimits.of(config))
    return FileKeeper(store, files, str(config.store_dir / STAGING))


async def restore_unreadable(store: Store) -> str:
    """Replace each unreadable node row by the copy in the newest event of that node.

    If the row of this host's node is unreadable and no event has a copy, return the ID of the node,
    so that `register` rebuilds the row. Otherwise return an empty string. Raises `StorageUnusable`,
    which names the row, if the row of another node cannot be restored.
    """
    try:
        store.read(nodes.list_all)
    except StorageUnreadable:
        damaged = await store.read_long(nodes.unreadable)
    else:
        return ""
    for damaged_node in damaged:
        if (last := damaged_node.last) is not None:
            await store.write(partial(nodes.put, node=last, kind="NodeEvent"))
            _log.warning(
                "%s; the row was restored from the node's newest event", damaged_node.reason
            )
    lost = [unrestored for unrestored in damaged if unrestored.last is None]
    if not lost:
        return ""
    is_other = any(not node.engine for node in store.read(nodes.list_readable))
    if is_other or len(lost) > 1:
        raise StorageUnusable(_lost(lost, str(store.path)))
    _log.error(
        "%s; no stored event holds a copy of this host's node, so the node is created again, "
        "without its drain, eligibility and history",
        lost[0].reason,
    )
    return lost[0].id


def _lost(lost: Sequence[nodes.UnreadableNode], path: str) -> str:
    ids = ", ".join(f"'{unreadable_node.id}'" for unreadable_node in lost)
    return (
        f"{'; '.join(unreadable_node.reason for unreadable_node in lost)}; no event holds a copy: "
        "restore a snapshot with `steward operator snapshot restore`, or give up all tasks of "
        f"these nodes and delete the rows with id {ids} from the table nodes in {path}"
    )


async def register(
    store: Store,
    config: Settings,
    drivers: Mapping[str, Fingerprint],
    fresh_id: str,
    now: int,
    attributes: Mapping[str, str] = MappingProxyType({}),
) -> Node:
    """Store this host as a node, with its existing ID and history.

    `attributes` are added to the detected attributes.
    """
    fingerprinted = fingerprint(config, drivers, now, attributes)
    # A row that `restore_unreadable` could not restore is replaced.
    stored_nodes = store.read(nodes.list_readable)
    before = next((node for node in stored_nodes if not node.engine), None)
    message = "Node re-registered" if before else "Node registered"
    happened = NodeEvent(message=message, subsystem="Cluster", timestamp=rfc3339(now))
    node = msgspec.structs.replace(
        fingerprinted,
        id=before.id if before else fresh_id,
        status_updated_at=now // SECOND,
        events=[*((before and before.events) or ()), happened][-_SHOWN_EVENTS:],
    )
    if before is not None:
        from storage.queries import host_volumes  # imported late: a new store has none

        changes = store.read(lambda db: nodes.meta_changes(db, before.id))
        created_volumes = store.read(lambda db: host_volumes.on_node(db, before.id))
        node = nodes.with_meta(node, config.node_meta, changes)
        node = msgspec.structs.replace(
            node,
            host_volumes={**created_volumes, **node.host_volumes},
            create_index=before.create_index,
            drain=before.drain,
            drain_strategy=before.drain_strategy,
            last_drain=before.last_drain,
            scheduling_eligibility=before.scheduling_eligibility,
        )
    try:
        return await store.write(lambda tx: nodes.put(tx, node, "NodeRegistration"))
    except StorageUnavailable as error:
        if before is None:
            raise
        _log.warning("cannot update the registration of the node: %s", error)
        return node
