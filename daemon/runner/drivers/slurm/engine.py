"""The engine: a cluster for each pool, the drivers of their tasks, and the desk for their wrappers."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from daemon.clock import Clock
from daemon.config import Config
from daemon.runner.drivers import permitted
from daemon.runner.drivers.slurm.cluster import Cluster
from daemon.runner.drivers.slurm.desk import Desk
from daemon.runner.drivers.slurm.driver import SlurmDriver, drivers_of
from daemon.runner.drivers.slurm.tools import Tools
from storage.errors import Invalid
from storage.store import Store

_LONGEST_CA = 64 * 1024  # bytes that fit into the environment of a job


class Engine(msgspec.Struct, frozen=True):
    """The drivers of each pool, and where wrappers are answered; `url` is where they ask."""

    drivers: Mapping[str, Mapping[str, SlurmDriver]]
    desk: Desk
    url: str


@asynccontextmanager
async def open_engine(
    store: Store,
    clock: Clock,
    config: Config,
    *,
    port: int,
    fresh: Callable[[], str],
    path: str | None = None,
) -> AsyncIterator[Engine]:
    """Give the engine for the pools of the configuration, whose clusters are looked at meanwhile.

    `port` is that of the listener for wrappers, `fresh` gives secrets that nobody can guess, `path`
    is where the programs of clusters are found. Raises `Invalid`.
    """
    desk = Desk(store, clock, fresh)
    url, ca = _address(config, port), _authority(config)
    clusters = [
        Cluster(
            name,
            pool,
            Tools(path=path or os.environ.get("PATH", os.defpath), config=pool.cluster_config),
            store,
            clock,
            url=url,
            ca=ca,
        )
        for name, pool in config.pools.items()
    ]
    async with trio.open_nursery() as nursery:
        for cluster in clusters:
            nursery.start_soon(cluster.run)
        users = permitted.of(config)
        drivers = {cluster.name: drivers_of(cluster, desk, users) for cluster in clusters}
        yield Engine(drivers, desk, url)
        nursery.cancel_scope.cancel()


def _address(config: Config, port: int) -> str:
    """Return where wrappers find us."""
    if config.wrapper_url:
        return config.wrapper_url.rstrip("/")
    host = f"[{config.wrapper_host}]" if ":" in config.wrapper_host else config.wrapper_host
    scheme = "https" if config.of_wrappers.is_encrypted else "http"
    return f"{scheme}://{host}:{port}"


def _authority(config: Config) -> str:
    """Return the certificates that wrappers are to trust; nothing: those that their hosts trust."""
    if config.wrapper_ca == Path():
        return ""
    try:
        text = config.wrapper_ca.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot use wrapper_ca = {str(config.wrapper_ca)!r}: {error}") from error
    if len(text) > _LONGEST_CA:
        raise Invalid(
            f"wrapper_ca = {str(config.wrapper_ca)!r} has {len(text)} bytes, {_LONGEST_CA} are the "
            "most: name a file with the one authority that signed the listener's certificate"
        )
    return text.strip()
