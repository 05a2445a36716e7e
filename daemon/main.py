"""The composition root: opens the parts in order, waits for a signal, and closes them in reverse.

What is opened first closes last: on SIGTERM the web closes, then the loops, then the runner lets
go of its tasks (or, in development, stops them), then the writer commits what waits. Whatever a
part raises ends the process: there is no half-alive daemon.
"""

import gc
import getpass
import logging
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon import listening, logs, reach
from daemon.acl.audit import open_audit
from daemon.acl.bootstrap import first_start
from daemon.acl.failures import LockOut
from daemon.acl.rootkey import KeySource, find_source
from daemon.acl.seal import open_seal
from daemon.acl.tokens import Tokens, open_tokens
from daemon.clock import Clock, SystemClock
from daemon.config import Config
from daemon.datadir import tasks_dir, weak_places
from daemon.fences import Fences
from daemon.hardening import come_before_tasks, keep_memory_private, share_one_heap
from daemon.health import examine
from daemon.kept_defaults import in_force
from daemon.launcher.client import LauncherGone, open_launcher
from daemon.moving import prepare
from daemon.parts import Parts
from daemon.systemd import ServiceManager, give_signs_of_life, inherited
from storage.errors import StewardError, StorageError, StorageUnusable, leaves
from storage.queries import kept_defaults
from storage.records.base import SECOND
from storage.snapshot import discard_unfinished
from storage.store import Store, open_store

if TYPE_CHECKING:
    from daemon.identity.methods import Methods

log = logging.getLogger("steward")

# Exit statuses (sysexits.h): what the service manager must not try again at once.
EXIT_FAILURE = 1
EXIT_STORAGE = 74
EXIT_CONFIG = 78

# Tenfold what Python has from the start: to look through the young objects of ten requests at once
# costs a third of ten looks, each at those that one request still needs.
_GARBAGE = (7000, 10, 10)
_CLOSE_WITHIN = 5.0  # seconds from the first signal to the end
_RANDOM_BITS = 0xFFFFFFFF_FFFF_0FFF_3FFF_FFFFFFFFFFFF
_VERSION_4 = 0x00000000_0000_4000_8000_000000000000


class UniqueIds:
    """An endless supply of identifiers: random UUIDs, without the objects around them.

    Threads may take them at the same time, which a generator does not allow.
    """

    def __iter__(self) -> "UniqueIds":
        """Return itself: this is an iterator."""
        return self

    def __next__(self) -> str:
        """Return another identifier."""
        text = f"{int.from_bytes(os.urandom(16)) & _RANDOM_BITS | _VERSION_4:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def run(config: Config, read: Callable[[], Config], channel: socket.socket) -> int:
    """Run the daemon until a signal ends it; return the exit status.

    `read` reads the settings anew, for those that can change while it runs. `channel` leads to the
    launcher.
    """
    logs.set_up(config.log_level, config.log_format, os.environ)
    status = 0
    keep_memory_private()
    share_one_heap()
    come_before_tasks()
    try:
        with _data_directory(config) as data_dir:
            present = msgspec.structs.replace(config, data_dir=data_dir)
            settings = Settings(present, config, read, channel)
            source = find_source(settings.present, os.environ, getpass.getpass)
            trio.run(serve, settings, SystemClock(), source)
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


@contextmanager
def _data_directory(config: Config) -> Iterator[Path]:
    """Make the data directory; a development daemon that was given none gets one for its life."""
    if config.data_dir != Path():
        try:
            config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnusable(
                f"data_dir = {str(config.data_dir)!r} cannot be made: {error.strerror}; "
                "name another directory with --data-dir"
            ) from error
        _check_places(config)
        prepare(config.data_dir, (config.key_file, config.snapshot_dir))
        with _covered(config.data_dir, config):
            yield config.data_dir
        return
    directory = Path(tempfile.mkdtemp(prefix="steward-dev-"))
    try:
        prepare(directory)
        with _covered(directory, config):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _covered(data_dir: Path, config: Config) -> Iterator[None]:
    """Let set-user-ID files of tasks have no effect; in development only during the block."""
    from daemon.runner.covering import cover, uncover

    tasks = tasks_dir(data_dir)
    if os.geteuid() == 0 and (reason := cover(tasks)):
        log.log(
            logging.INFO if config.dev else logging.WARNING,
            "set-user-ID files and devices have their effect below %s: it cannot be mounted: %s",
            tasks,
            reason,
        )
    try:
        yield
    finally:
        if config.dev:
            uncover(tasks)


def _check_places(config: Config) -> None:
    """Refuse a data directory that others could replace; in development, warn. Raises `StorageUnusable`."""
    for fault in weak_places(config.data_dir):
        text = f"data_dir = {str(config.data_dir)!r} is not safe from other users: {fault}"
        if not config.dev:
            raise StorageUnusable(text)
        log.warning("%s", text)


class Settings(msgspec.Struct, frozen=True):
    """The settings: as the daemon works with them, as they were read, and how to read them again.

    `channel` leads to the launcher.
    """

    present: Config
    given: Config
    read: Callable[[], Config]
    channel: socket.socket


async def serve(settings: Settings, clock: Clock, source: KeySource) -> None:
    """Open the parts, say that they are ready, and close them when a signal asks for it."""
    ids = UniqueIds()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            stopping = trio.Event()
            nursery.start_soon(_on_signals, signals, stopping)
            await _run_parts(settings, clock, source, ids, stopping)
            nursery.cancel_scope.cancel()


async def _run_parts(
    settings: Settings, clock: Clock, source: KeySource, ids: Iterator[str], stopping: trio.Event
) -> None:
    from daemon.identity.issuer import open_issuer
    from daemon.jobspec.policies import Policies

    config = settings.present
    policies = Policies(config.job_policies)
    manager = ServiceManager(os.environ)
    fences = Fences(clock)
    async with AsyncExitStack() as parts:
        store = await parts.enter_async_context(
            open_store(config.store_dir, cluster_id=next(ids), now=clock.now())
        )
        discard_unfinished(config.store_dir)
        config = in_force(config, store.read(kept_defaults.every))
        launcher = await parts.enter_async_context(
            open_launcher(settings.channel, config.alloc_dir)
        )
        seal = await open_seal(store, source, clock.now())
        issuer = await parts.enter_async_context(open_issuer(store, seal, clock, ids))

        # A new store's signing key is made in a thread while all this is imported.
        from daemon.acl.task_tokens import TaskTokens
        from daemon.api.endpoints import ENDPOINTS, PUBLIC
        from daemon.api.routes import ROUTES
        from daemon.backups import open_backups
        from daemon.evals.gc import retention
        from daemon.evals.worker import open_evals
        from daemon.identity.door import open_door
        from daemon.jobs.children import open_children
        from daemon.jobs.periodic import open_periodic
        from daemon.notify.sender import open_notify
        from daemon.reloading import Reloading
        from daemon.runner.node import open_runner
        from daemon.ui.routes import PAGES
        from daemon.variables.locks import open_locks
        from daemon.variables.tasks import TaskVariables
        from daemon.web.connections import open_listeners, open_public_listeners
        from daemon.web.rights import Rights
        from daemon.web.server import in_public, open_web

        tokens = await parts.enter_async_context(
            open_tokens(
                store,
                clock,
                seal,
                asks=config.asks_for_tokens,
                workload_of=issuer.workload,
                lock_out=LockOut(config.lockout_threshold, config.lockout_seconds * SECOND),
            )
        )
        if not config.dev:
            await _first_start(config, store, tokens, clock, ids)
        audit = await parts.enter_async_context(open_audit(store, clock, seal, config))
        listeners = parts.enter_context(open_listeners(config, inherited(os.environ)))
        config = msgspec.structs.replace(config, port=listeners.port)
        engine = wrapper_listeners = None
        if config.pools:
            from daemon.api import wrapper
            from daemon.runner.drivers.slurm.engine import open_engine
            from daemon.web.connections import open_wrapper_listeners

            wrapper_listeners = parts.enter_context(open_wrapper_listeners(config))
            engine = await parts.enter_async_context(
                open_engine(
                    store,
                    clock,
                    config,
                    port=wrapper_listeners.port,
                    fresh=partial(secrets.token_hex, 32),
                )
            )
            config = msgspec.structs.replace(config, wrapper_url=engine.url)
        variables = TaskVariables(store, seal, asks=config.asks_for_tokens)
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
                listeners=listening.on,
                pool_drivers=engine.drivers if engine else {},
            )
        )
        await parts.enter_async_context(
            open_evals(store, clock, ids, retention(config), fences, listening.ports)
        )
        await parts.enter_async_context(open_periodic(store, clock, ids, fences))
        await parts.enter_async_context(open_children(store, clock, ids, fences))
        await parts.enter_async_context(open_locks(store, clock, fences))
        await parts.enter_async_context(open_backups(config, clock))
        await parts.enter_async_context(
            open_notify(
                store,
                clock,
                seal,
                fences,
                commands=config.notify_commands,
                permit=partial(reach.check, own_ports=reach.own_ports(config)),
                chance=random.SystemRandom().random,
            )
        )
        if config.dev_cloud:
            from daemon.identity.devcloud import open_devcloud

            cloud = await parts.enter_async_context(open_devcloud(clock, config.dev_cloud_port))
            config = cloud.as_cloud_of(config)
        await issuer.has_key()

        def opening() -> "AbstractAsyncContextManager[Methods]":
            from daemon.identity.methods import open_methods

            return open_methods(store, clock, seal, tokens, issuer, ids, config)

        door = await parts.enter_async_context(open_door(store, opening))
        if config.dev_cloud:
            from daemon.identity.example import prepare

            await prepare(store, await door.methods(), clock, ids)
        shared = Parts(
            config=config,
            store=store,
            clock=clock,
            ids=ids,
            seal=seal,
            audit=audit,
            issuer=issuer,
            tasks=runner,
            fences=fences,
            tokens=tokens,
            rights=Rights(ROUTES, ENDPOINTS),
            door=door,
            policies=policies,
            wrappers=engine.desk if engine else None,
        )
        if engine and wrapper_listeners:
            await parts.enter_async_context(
                open_web(
                    in_public(shared),
                    wrapper.routes(),
                    (),
                    wrapper_listeners.places,
                    most=wrapper.MOST,
                    doorkeeper=wrapper.doorkeeper(),
                )
            )
            parts.callback(engine.desk.close)
        if public := parts.enter_context(open_public_listeners(config)):
            await parts.enter_async_context(open_web(in_public(shared), (), PUBLIC, public))
        await parts.enter_async_context(
            open_web(shared, ROUTES, ENDPOINTS, listeners.places, PAGES)
        )
        async with trio.open_nursery() as nursery:
            reload = Reloading(settings.given, settings.read, listeners, shared, wrapper_listeners)
            await nursery.start(_reload_on_hangup, reload, config, manager)
            nursery.start_soon(
                give_signs_of_life, manager, partial(examine, store, config.task_socket_path)
            )
            # What there is now stays: it is not searched for garbage again (see `daemon.__main__`).
            gc.freeze()
            gc.set_threshold(*_GARBAGE)
            # For people and for scripts that wait for it: the one line on standard output.
            print(f"steward is ready at {config.address}", flush=True)  # noqa: T201
            manager.ready(_status(config))
            await stopping.wait()
            manager.stopping()
            nursery.cancel_scope.cancel()


def _status(config: Config) -> str:
    return f"answers at {config.address}"


async def _reload_on_hangup(
    reload: Callable[[], None],
    config: Config,
    manager: ServiceManager,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Read settings anew whenever a signal asks for it."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            manager.reloading()
            reload()
            manager.ready(_status(config))


async def _first_start(
    config: Config, store: Store, tokens: Tokens, clock: Clock, ids: Iterator[str]
) -> None:
    """Make the first token of a new store, and say where its secret is."""
    secret, accessor = next(ids), next(ids)
    path = await first_start(
        store, tokens, config.store_dir, secret=secret, accessor=accessor, now=clock.now()
    )
    if path is not None:
        log.info("the secret of the first management token is in %s", path)


async def _on_signals(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    """Ask for the end at the first signal, and make it at the second or when it takes too long."""
    await anext(signals)
    log.info("ending")
    stopping.set()
    with trio.move_on_after(_CLOSE_WITHIN):
        await anext(signals)
        log.warning("ending at once")
    os._exit(EXIT_FAILURE)
