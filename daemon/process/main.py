"""The composition root: opens the parts in order, waits for a signal, and closes them in reverse.

On SIGTERM, the HTTP servers close first, then the loops. Then the runner releases its tasks, or
stops them in development mode. Last, the writer commits queued writes. After an exception in
any part, the process exits, so that no daemon runs with some parts missing.
"""

import gc
import logging
import os
import random
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.acl.audit import open_audit
from daemon.acl.bootstrap import bootstrap_on_first_start
from daemon.acl.lockout import LockoutPolicy
from daemon.acl.seal import open_seal
from daemon.acl.tokens import TokenStore, open_tokens
from daemon.app.context import AppContext
from daemon.clock import Clock, SystemClock
from daemon.config.settings import Settings
from daemon.fences import open_fences
from daemon.launcher.client import LauncherGone, open_launcher
from daemon.launcher.hardening import come_before_tasks, disable_core_dumps, use_single_heap
from daemon.log import daemon_log
from daemon.net import egress_policy, port_listeners
from daemon.process.health import check_health
from daemon.process.service_account import ROOT
from daemon.process.startup import StartupResult, begin
from daemon.process.systemd import ServiceManager, run_watchdog
from storage import garbage
from storage.errors import StewardError, StorageError, leaves
from storage.records.base import SECOND
from storage.snapshot import delete_partial
from storage.store import Store, open_store

if TYPE_CHECKING:
    from daemon.identity.methods import LoginMethods

log = logging.getLogger("steward")

# Exit statuses (sysexits.h) that the service manager should not answer with an immediate restart.
EXIT_FAILURE = 1
EXIT_STORAGE = 74
EXIT_CONFIG = 78

# Ten times Python's defaults. One collection over the objects of ten requests costs a third of ten
# small collections, which would also scan objects still in use.
_GARBAGE = (7000, 10, 10)
_CLOSE_WITHIN = 5.0  # seconds from the first signal to a forced exit
_RANDOM_BITS = 0xFFFFFFFF_FFFF_0FFF_3FFF_FFFFFFFFFFFF
_VERSION_4 = 0x00000000_0000_4000_8000_000000000000


class UniqueIds:
    """An endless iterator of random UUIDs, without creating UUID objects.

    Threads may share it, which a generator does not allow.
    """

    def __iter__(self) -> "UniqueIds":
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Return another identifier."""
        text = f"{int.from_bytes(os.urandom(16)) & _RANDOM_BITS | _VERSION_4:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def run(config: Settings, read: Callable[[], Settings], channel: socket.socket, file: Path) -> int:
    """Run the daemon until a signal stops it; return the exit status.

    `read` reads the settings again from their sources, including `file`, for those that can change
    at runtime. `channel` is the socket to the launcher.
    """
    daemon_log.configure_logging(config.log_level, config.log_format, os.environ)
    status = 0
    disable_core_dumps()
    use_single_heap()
    come_before_tasks()
    try:
        with begin(config, read, channel, file) as begun:
            trio.run(serve, begun, SystemClock())
    except* LauncherGone as group:
        status = _give_up(group, EXIT_FAILURE)
    except* StorageError as group:
        status = _give_up(group, EXIT_STORAGE)
    except* StewardError as group:
        status = _give_up(group, EXIT_CONFIG)
    except* Exception as group:
        log.exception("the daemon failed", exc_info=group)
        status = _give_up(group, EXIT_FAILURE)
    return status


def _give_up(group: BaseExceptionGroup, status: int) -> int:
    for text in dict.fromkeys(str(error) or type(error).__name__ for error in leaves(group)):
        print(f"steward: {text}", file=sys.stderr)  # noqa: T201  # the last word
    return status


async def serve(begun: StartupResult, clock: Clock) -> None:
    """Open the parts, report readiness, and close the parts after a signal."""
    ids = UniqueIds()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            stopping = trio.Event()
            nursery.start_soon(_on_signals, signals, stopping)
            await _run_parts(begun, clock, ids, stopping)
            nursery.cancel_scope.cancel()


async def _run_parts(
    begun: StartupResult, clock: Clock, ids: Iterator[str], stopping: trio.Event
) -> None:
    from daemon.identity.issuer import open_issuer
    from daemon.jobspec.policies import JobPolicySet

    config = begun.present
    policies = JobPolicySet(config.job_policies)
    manager = ServiceManager(os.environ)
    is_ready = trio.Event()  # set when the tasks that take longer with more jobs may start
    async with AsyncExitStack() as parts:
        store = await parts.enter_async_context(
            open_store(config.store_dir, cluster_id=next(ids), now=clock.now(), is_locked=True)
        )
        delete_partial(config.store_dir)
        # A damaged database must stop the start: later, fences would contain the error.
        store.read(lambda db: db.table_index("nodes"))
        fences = await parts.enter_async_context(open_fences(store, clock, config.store_dir))
        launcher = await parts.enter_async_context(open_launcher(begun.channel))
        seal = await open_seal(store, begun.source, clock.now())
        issuer = await parts.enter_async_context(open_issuer(store, seal, clock, ids, fences))

        # A thread creates a new store's signing key while these modules are imported.
        from daemon.acl.task_tokens import TaskTokens
        from daemon.api.routes import ROUTES
        from daemon.api.vault_routes import ENDPOINTS, PUBLIC
        from daemon.evals.gc import retention
        from daemon.evals.worker import open_evals
        from daemon.identity.lazy_methods import open_door
        from daemon.jobs.child_limits import open_children
        from daemon.jobs.periodic import open_periodic
        from daemon.notify.sender import open_notify
        from daemon.process.backups import open_backups
        from daemon.process.reload import SettingsReloader
        from daemon.runner.node import open_runner
        from daemon.ui.routes import PAGES
        from daemon.variables.locks import open_locks
        from daemon.variables.task_reader import TaskVariableReader
        from daemon.web.connections import (
            listeners_at,
            public_listeners_at,
            wrapper_listeners_at,
        )
        from daemon.web.rights import RouteRights
        from daemon.web.server import open_web, public_context

        tokens = await parts.enter_async_context(
            open_tokens(
                store,
                clock,
                seal,
                asks=config.asks_for_tokens,
                workload_of=issuer.workload,
                lock_out=LockoutPolicy(config.lockout_threshold, config.lockout_seconds * SECOND),
                fences=fences,
            )
        )
        if not config.dev:
            await _first_start(config, store, tokens, clock, ids)
        audit = await parts.enter_async_context(open_audit(store, clock, seal, config, fences))
        listeners = listeners_at(begun.doors)
        config = msgspec.structs.replace(config, port=listeners.port)
        engine = None
        if wrapper_listeners := wrapper_listeners_at(begun.doors):
            from daemon.api import wrapper
            from daemon.runner.drivers.slurm.backend import open_engine

            engine = await parts.enter_async_context(
                open_engine(
                    store,
                    clock,
                    config,
                    port=wrapper_listeners.port,
                    fresh=partial(secrets.token_hex, 32),
                    fences=fences,
                )
            )
            config = msgspec.structs.replace(config, wrapper_url=engine.url)
        variables = TaskVariableReader(store, seal, asks=config.asks_for_tokens)
        runner = await parts.enter_async_context(
            open_runner(
                store,
                clock,
                config,
                ids,
                issuer,
                variables,
                TaskTokens(store, tokens, clock),
                launcher=launcher,
                holding=begun.holding,
                guard=begun.guard,
                listeners=port_listeners.listeners_on,
                fences=fences,
                pool_drivers=engine.drivers if engine else {},
                is_separated=begun.welcome.is_root and os.geteuid() != ROOT,
            )
        )
        await parts.enter_async_context(
            open_evals(
                store, clock, ids, retention(config), fences, port_listeners.ports, begins=is_ready
            )
        )
        await parts.enter_async_context(
            open_periodic(
                store, clock, ids, fences, most_specs=config.job_max_specs, begins=is_ready
            )
        )
        await parts.enter_async_context(open_children(store, clock, ids, fences))
        await parts.enter_async_context(open_locks(store, clock, fences))
        await parts.enter_async_context(open_backups(config, clock, fences))
        notify = await parts.enter_async_context(
            open_notify(
                store,
                clock,
                seal,
                fences,
                commands=config.notify_commands,
                receivers=config.notify_receivers,
                here=config.node_name,
                permit=partial(egress_policy.check, own_ports=egress_policy.own_ports(config)),
                chance=random.SystemRandom().random,
                site=config.notify_link.rstrip("/") or config.address,
            )
        )
        if config.dev_cloud:
            from daemon.identity.devcloud import open_devcloud

            cloud = await parts.enter_async_context(open_devcloud(clock, config.dev_cloud_port))
            config = cloud.as_cloud_of(config)
        await issuer.has_key()

        def opening() -> "AbstractAsyncContextManager[LoginMethods]":
            from daemon.identity.methods import open_methods

            return open_methods(store, clock, seal, tokens, issuer, ids, config, fences)

        door = await parts.enter_async_context(open_door(store, opening, fences))
        if config.dev_cloud:
            from daemon.identity.dev_setup import prepare

            await prepare(store, await door.methods(), clock, ids)
        shared = AppContext(
            config=config,
            store=store,
            clock=clock,
            ids=ids,
            seal=seal,
            audit=audit,
            issuer=issuer,
            tasks=runner,
            logs=runner.logs,
            fences=fences,
            notify=notify,
            tokens=tokens,
            rights=RouteRights(ROUTES, ENDPOINTS),
            door=door,
            policies=policies,
            wrappers=engine.desk if engine else None,
        )
        if engine and wrapper_listeners:
            await parts.enter_async_context(
                open_web(
                    public_context(shared),
                    wrapper.routes(),
                    (),
                    wrapper_listeners.places,
                    most=wrapper.MOST,
                    doorkeeper=wrapper.authenticate_wrapper(),
                )
            )
            parts.callback(engine.desk.close)
        if public := public_listeners_at(begun.doors):
            await parts.enter_async_context(open_web(public_context(shared), (), PUBLIC, public))
        await parts.enter_async_context(
            open_web(shared, ROUTES, ENDPOINTS, listeners.places, PAGES)
        )
        async with trio.open_nursery() as nursery:
            reload = SettingsReloader(
                begun.given, begun.read, listeners, shared, launcher.read_own, wrapper_listeners
            )
            await nursery.start(_reload_on_hangup, reload, config, manager)
            nursery.start_soon(
                run_watchdog, manager, partial(check_health, store, config.task_socket_path)
            )
            # Objects created so far stay in memory, so collections skip them (see
            # `daemon.__main__`).
            gc.freeze()
            gc.set_threshold(*_GARBAGE)
            nursery.start_soon(
                fences.keep_running, "garbage of the interpreter", garbage.keep_looking
            )
            # The only line on standard output, for people and for scripts that wait for it.
            print(f"steward is ready at {config.address}", flush=True)  # noqa: T201
            manager.ready(_status(config))
            is_ready.set()
            await stopping.wait()
            manager.stopping()
            nursery.cancel_scope.cancel()


def _status(config: Settings) -> str:
    return f"answers at {config.address}"


async def _reload_on_hangup(
    reload: Callable[[], Awaitable[None]],
    config: Settings,
    manager: ServiceManager,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Reload the settings at each SIGHUP."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            manager.reloading()
            await reload()
            manager.ready(_status(config))


async def _first_start(
    config: Settings, store: Store, tokens: TokenStore, clock: Clock, ids: Iterator[str]
) -> None:
    """Create the first token of a new store, and log the path of its secret."""
    secret, accessor = next(ids), next(ids)
    path = await bootstrap_on_first_start(
        store, tokens, config.store_dir, secret=secret, accessor=accessor, now=clock.now()
    )
    if path is not None:
        log.info("the secret of the first management token is in %s", path)


async def _on_signals(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    """Start the shutdown at the first signal; exit at the second or after the time limit."""
    await anext(signals)
    log.info("ending")
    stopping.set()
    with trio.move_on_after(_CLOSE_WITHIN):
        await anext(signals)
        log.warning("exiting immediately")
    os._exit(EXIT_FAILURE)
