"""The machine: its drivers, the limits of the daemon on it, and its registration as a node."""

import logging
import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from errno import EMFILE, ENFILE
from types import MappingProxyType

import msgspec

from daemon import reach
from daemon.config import Config
from daemon.launcher.client import Launcher
from daemon.runner.artifacts.archive import Limits
from daemon.runner.artifacts.fetch import Fetcher
from daemon.runner.drivers import bounds, permitted, subtree
from daemon.runner.drivers.driver import Driver
from daemon.runner.drivers.exec import Exec
from daemon.runner.drivers.group import Groups
from daemon.runner.drivers.limits import CONTROLLERS, Bounds
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.drivers.podman import driver as podman
from daemon.runner.drivers.raw_exec import RawExec
from daemon.runner.fingerprint import fingerprint
from daemon.runner.uids import Uids
from storage.errors import StorageUnavailable
from storage.queries import nodes
from storage.records.base import SECOND
from storage.records.node import Node, NodeEvent
from storage.records.times import rfc3339
from storage.store import Store

_STANDARD_ERROR = 2
SHORTAGE_PAUSE = 1.0  # seconds between two tries while no descriptor is free: that costs no attempt
_NEEDED = 8  # descriptors of the setup and the start of a task
_MEGABYTE = 1024 * 1024
_SHOWN_EVENTS = 10  # of a node, as the peer keeps

_log = logging.getLogger("steward.runner")


async def drivers_of(
    groups: Groups,
    inherited: Mapping[str, str],
    launcher: Launcher,
    config: Config,
    uids: Uids | None,
    found: tuple[Groups, Bounds],
) -> dict[str, Driver]:
    """Return the drivers that this machine has, by name; `found` is what holds tasks to limits."""
    holding, limits = found
    most = config.task_processes
    walled = (holding, inherited, launcher, limits, most)
    raw = walled if config.raw_exec_limits else (groups, inherited, launcher)
    users = permitted.of(config)
    made: list[Driver] = [
        RawExec(*raw, users=users, enabled=config.runs_raw_exec),
        Exec(*walled, unfiltered=config.opens_filters, users=users, uids=uids),
    ]
    made += await podman.find(
        config.podman_service, inherited, volumes=config.podman_volumes, processes=most
    )
    if config.dev:
        made.append(MockDriver())
    return {driver.name: driver for driver in made}


def find_bounds(groups: Groups, config: Config) -> tuple[Groups, Bounds]:
    """Return what holds the processes of a task together, and to limits, where both are wanted.

    `groups` are for tasks without limits.
    """
    tree = subtree.own_tree()
    found = subtree.find(config.groups_of, config.cgroup_parent, tree, subtree.Files())
    if isinstance(found, subtree.Subtree):
        return found, found
    reason = f"{found}, and the daemon may make no such group of version 1"
    return groups, bounds.find(config.groups_of, dict.fromkeys(CONTROLLERS, reason))


def fetcher_of(config: Config) -> Fetcher:
    """Return what fetches artifacts, with the bounds of the configuration."""
    return Fetcher(
        limits=Limits(bytes=config.artifact_max_mb * _MEGABYTE, files=config.artifact_max_files),
        seconds=config.artifact_seconds,
        files_from=tuple(os.path.realpath(path) for path in config.artifact_paths),
        own_ports=reach.own_ports(config),
    )


def raise_limit() -> None:
    """Let the daemon have as many descriptors as it may: a running task needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def is_shortage(error: BaseException | None) -> bool:
    """Tell whether the process or the host has no free descriptor."""
    return isinstance(error, OSError) and error.errno in (EMFILE, ENFILE)


def is_short() -> bool:
    """Tell whether a task that starts now would find too few descriptors."""
    taken: list[int] = []
    try:
        taken.extend(os.eventfd(0) for _ in range(_NEEDED))
    except OSError as error:
        return is_shortage(error)
    finally:
        for one in taken:
            os.close(one)
    return False


def keep_descriptors() -> None:
    """Let no task inherit what the daemon itself has inherited; what it opens is its own anyway."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > _STANDARD_ERROR:
            with suppress(OSError):  # the one by which the directory was read
                os.set_inheritable(descriptor, False)


async def register(
    store: Store,
    config: Config,
    drivers: Mapping[str, Driver],
    fresh_id: str,
    now: int,
    attributes: Mapping[str, str] = MappingProxyType({}),
) -> Node:
    """Store this machine as a node, with the id and the history that it has already.

    `attributes` are further ones of the node.
    """
    found = fingerprint(config, drivers, now, attributes)
    before = store.read(lambda db: next((one for one in nodes.every(db) if not one.engine), None))
    message = "Node re-registered" if before else "Node registered"
    happened = NodeEvent(message=message, subsystem="Cluster", timestamp=rfc3339(now))
    node = msgspec.structs.replace(
        found,
        id=before.id if before else fresh_id,
        status_updated_at=now // SECOND,
        events=[*((before and before.events) or ()), happened][-_SHOWN_EVENTS:],
    )
    if before is not None:
        changes = store.read(lambda db: nodes.meta_changes(db, before.id))
        node = nodes.with_meta(node, config.node_meta, changes)
        node = msgspec.structs.replace(
            node,
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
        _log.warning("the node is not registered anew: %s", error)
        return node
