"""A node that is a partition of a fake cluster, with the listener for its wrappers."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec

from daemon.acl.task_tokens import TaskTokens
from daemon.acl.tokens import open_tokens
from daemon.api import wrapper
from daemon.clock import SystemClock
from daemon.config.settings import Settings
from daemon.runner.drivers.slurm.backend import SlurmBackend, open_engine
from daemon.runner.node import RunnerDependencies, open_runner
from daemon.variables.task_reader import TaskVariableReader
from daemon.web.connections import ConnectionListeners
from daemon.web.server import open_web, public_context
from storage.queries import cluster_runs, nodes
from storage.records.cluster_run import ClusterRun
from storage.records.pool import SLURM, Pool
from storage.store import Store
from tests import launchers
from tests.fakes.slurm.world import FakeSlurm
from tests.http_clients import trusted
from tests.listeners import open_wrapper_listeners
from tests.parts.api.requests import parts_of
from tests.parts.runner.world import SEAL, Signer, World, unique_ids

POOL = "hpc"


class PoolWorld(World):
    """The store, the runner and the cluster; allocations are placed in the pool."""

    slurm: FakeSlurm
    engine: SlurmBackend
    client: httpx.AsyncClient  # like a client on a host of the cluster

    def rows(self, alloc_id: str) -> list[ClusterRun]:
        """Return the stored attempts of an allocation."""
        return self.store.read(lambda db: cluster_runs.of_allocation(db, alloc_id))

    def said(self, alloc_id: str) -> list[str]:
        """Return the cluster's reports about the task."""
        return [text for kind, text in self.told(alloc_id) if kind == "Cluster"]

    async def until_running(self, alloc_id: str) -> None:
        await self.until_status(alloc_id, "running")

    async def ask(self, method: str, path: str, secret: str = "", **options: Any) -> httpx.Response:
        """Send a request like a wrapper."""
        headers = {"Connection": "close"}  # as a client that sends one request
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        return await self.client.request(method, path, headers=headers, **options)


def settings(directory: Path, **pool: Any) -> Settings:
    """Return the settings of a daemon with one pool, whose hosts use a subdirectory."""
    hosts = directory / "hosts"
    hosts.mkdir(exist_ok=True)
    given = Pool(engine=SLURM, partition="main", directory=str(hosts), **pool)
    return Settings(
        data_dir=directory,
        node_name="node-1",
        wrapper_port=0,
        pools={POOL: given},
        raw_exec_root=True,  # only root can execute the programs of the fake cluster
    )


@contextmanager
def listening(config: Settings) -> Iterator[tuple[Settings, ConnectionListeners]]:
    """Listen to wrappers at a port that stays the same for these settings."""
    with open_wrapper_listeners(config) as listeners:
        yield msgspec.structs.replace(config, wrapper_port=listeners.port), listeners


@asynccontextmanager
async def open_pool(store: Store, slurm: FakeSlurm, config: Settings) -> AsyncIterator[PoolWorld]:
    """Open a runner with a pool on a store.

    A second runner on the same store continues the work of a killed daemon.
    """
    clock = SystemClock()
    with listening(config) as (config, listeners):  # these settings contain the chosen port
        async with (
            launchers.open_for_programs(config.alloc_dir, slurm.path) as launcher,
            open_tokens(store, clock, SEAL, asks=True) as tokens,
            open_engine(
                store,
                clock,
                config,
                launcher=launcher,
                port=listeners.port,
                fresh=partial(secrets.token_hex, 32),
                path=slurm.path,
            ) as engine,
            open_runner(
                RunnerDependencies(
                    store=store,
                    clock=clock,
                    config=config,
                    ids=unique_ids(),
                    signer=Signer(),
                    variables=TaskVariableReader(store, SEAL, asks=True),
                    credentials=TaskTokens(store, tokens, clock),
                    launcher=launcher,
                    environment={"PATH": slurm.path},
                    pool_drivers=engine.drivers,
                )
            ) as runner,
        ):
            parts = msgspec.structs.replace(
                public_context(parts_of(store, config)),
                wrappers=engine.wrapper_api,
                ids=unique_ids(),
            )
            async with open_web(
                parts,
                wrapper.routes(),
                (),
                listeners.places,
                most=wrapper.MOST,
                authenticate_wrapper=wrapper.authenticate_wrapper(),
            ):
                world = PoolWorld(store, runner, config, tokens)
                world.slurm, world.engine = slurm, engine
                url = f"http://127.0.0.1:{listeners.port}"
                every = store.read(nodes.list_all)
                world.node_id = next(node.id for node in every if node.node_pool == POOL)
                async with httpx.AsyncClient(
                    verify=trusted(), base_url=url, trust_env=False
                ) as world.client:
                    try:
                        yield world
                    finally:
                        engine.wrapper_api.close()
