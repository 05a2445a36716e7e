"""The backend of cluster pools: clusters, drivers, and the API for wrappers."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from daemon.clock import Clock
from daemon.config.data_directory import STAGING
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.jobs.payload_files import PayloadFiles, PayloadLimits
from daemon.launcher.client import Launcher
from daemon.runner.drivers import permitted_users
from daemon.runner.drivers.slurm.cluster import SlurmCluster
from daemon.runner.drivers.slurm.commands import SlurmCommands
from daemon.runner.drivers.slurm.driver import SlurmDriver, drivers_of
from daemon.runner.drivers.slurm.kept_uploads import KeptUploads
from daemon.runner.drivers.slurm.wrapper_api import WrapperApi
from storage.errors import Invalid
from storage.store import Store

_LONGEST_CA = 64 * 1024  # bytes that fit into the environment of a job


class SlurmBackend(msgspec.Struct, frozen=True):
    """The drivers of each pool, and the API for wrappers; `url` is the address of that API."""

    drivers: Mapping[str, Mapping[str, SlurmDriver]]
    wrapper_api: WrapperApi
    url: str


@asynccontextmanager
async def open_engine(
    store: Store,
    clock: Clock,
    config: Settings,
    *,
    launcher: Launcher,
    port: int,
    fresh: Callable[[], str],
    own: int | None = None,
    path: str | None = None,
    fences: Fences | None = None,
) -> AsyncIterator[SlurmBackend]:
    """Open the backend for the configured pools and poll their clusters.

    `port` is the port of the listener for wrappers, and `fresh` returns random secrets. `own` is
    the user ID of the launcher, by default the daemon's, and `path` is the search path for the
    clusters' programs. Raises `Invalid`.
    """
    wrapper_api = WrapperApi(store, clock, fresh, _uploads(config, store, clock))
    url, ca = _address(config, port), _authority(config)
    clusters = [
        SlurmCluster(
            name,
            pool,
            SlurmCommands(
                path=path or os.environ.get("PATH", os.defpath),
                launcher=launcher,
                config=pool.cluster_config,
            ),
            store,
            clock,
            url=url,
            ca=ca,
            users=permitted_users.without_rules(own),
        )
        for name, pool in config.pools.items()
    ]
    async with trio.open_nursery() as nursery:
        for cluster in clusters:
            name = f"cluster of pool {cluster.name}"
            nursery.start_soon((fences or Fences(clock)).keep_running, name, cluster.run)
        users = permitted_users.of(config, own)
        drivers = {cluster.name: drivers_of(cluster, wrapper_api, users) for cluster in clusters}
        yield SlurmBackend(drivers, wrapper_api, url)
        nursery.cancel_scope.cancel()


def _uploads(config: Settings, store: Store, clock: Clock) -> KeptUploads:
    """Return the object that receives files to keep, with the configured limits."""
    payloads = PayloadFiles(store, str(config.payloads_dir), PayloadLimits.of(config))
    return KeptUploads(store, payloads, str(config.store_dir / STAGING), clock.now)


def _address(config: Settings, port: int) -> str:
    """Return the URL that wrappers connect to."""
    if config.wrapper_url:
        return config.wrapper_url.rstrip("/")
    host = f"[{config.wrapper_host}]" if ":" in config.wrapper_host else config.wrapper_host
    scheme = "https" if config.of_wrappers.is_encrypted else "http"
    return f"{scheme}://{host}:{port}"


def _authority(config: Settings) -> str:
    """Return the CA certificates with which wrappers verify the daemon.

    If the result is empty, each wrapper uses the CA certificates of its host.
    """
    if config.wrapper_ca == Path():
        return ""
    try:
        text = config.wrapper_ca.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot use wrapper_ca = {str(config.wrapper_ca)!r}: {error}") from error
    if len(text) > _LONGEST_CA:
        raise Invalid(
            f"wrapper_ca = {str(config.wrapper_ca)!r} has {len(text)} bytes; the maximum is "
            f"{_LONGEST_CA}: name a file with only the certificate of the authority that signed "
            "the listener's certificate"
        )
    return text.strip()
