"""The parts of the running daemon: a table in the order in which they open.

Each part has one opener, a small function that enters the part and stores it in `DaemonParts`. For
each part, `PARTS` names the earlier parts that its opener reads. Parts close in reverse order. Each
opener imports the modules of its part. For a new store, a thread creates the first signing key
during these imports.
"""

import logging
import os
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import trio

from daemon.acl.audit import Audit, open_audit
from daemon.acl.lockout import LockoutPolicy
from daemon.acl.seal import EnvelopeCipher, check_root_key, open_seal
from daemon.acl.tokens import TokenStore, open_tokens
from daemon.app.context import AppContext, Receivers
from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences, open_fences
from daemon.launcher.client import Launcher, open_launcher
from daemon.net import egress_policy, port_listeners
from daemon.process.service_account import ROOT
from daemon.process.startup import StartupResult
from storage.queries import freezes, runs
from storage.records.base import SECOND
from storage.records.flow import ARRIVED, SLOTS_FREE
from storage.snapshot import delete_partial
from storage.store import Store, open_store

if TYPE_CHECKING:
    from daemon.identity.issuer import Issuer
    from daemon.identity.lazy_methods import LazyMethods
    from daemon.identity.methods import LoginMethods
    from daemon.jobspec.budgets import Budgets
    from daemon.jobspec.policies import JobPolicySet
    from daemon.otlp.sender import OtlpReceiver
    from daemon.runner.drivers.slurm.backend import SlurmBackend
    from daemon.runner.node import NodeRunner
    from daemon.web.certificate_files import ServerContext
    from daemon.web.connections import ConnectionListeners
    from daemon.web.rights import RouteRights

T = TypeVar("T")

log = logging.getLogger("steward")


class DaemonParts:
    """The parts that are open so far. Reading a part that is not open raises `AttributeError`.

    `config` holds the current settings. Openers complete it with values that are only known once a
    part is open, such as the port. Some loops have more work if there are more jobs. These loops
    wait until `is_ready` is set.
    """

    policies: "JobPolicySet"
    store: Store
    fences: Fences
    launcher: Launcher
    seal: EnvelopeCipher
    issuer: "Issuer"
    tokens: TokenStore
    audit: Audit
    listeners: "ConnectionListeners"
    wrapper_listeners: "ConnectionListeners | None"
    otlp: "OtlpReceiver | None"  # None without `otlp_url`
    engine: "SlurmBackend | None"  # None without cluster pools
    runner: "NodeRunner"
    notify: Receivers
    login: "LazyMethods"
    context: AppContext

    def __init__(
        self, startup_result: StartupResult, clock: Clock, ids: Iterator[str], stack: AsyncExitStack
    ) -> None:
        self.begun, self.clock, self.ids, self.stack = startup_result, clock, ids, stack
        self.config: Settings = startup_result.present
        self.is_ready = trio.Event()

    @property
    def is_separated(self) -> bool:
        """Return whether the launcher has privileges that the daemon lacks."""
        return self.begun.welcome.is_root and os.geteuid() != ROOT

    @property
    def tls_contexts(self) -> "list[ServerContext]":
        """Return the TLS settings of all listeners that have a certificate."""
        listeners = (self.listeners, self.wrapper_listeners)
        return [one.context for one in listeners if one is not None and one.context is not None]

    async def enter(self, part: AbstractAsyncContextManager[T]) -> T:
        """Open a part, which stays open until the daemon ends."""
        return await self.stack.enter_async_context(part)

    def complete(self, config: Settings) -> None:
        """Replace the current settings with settings that an opener has completed."""
        self.config = config


class Part(msgspec.Struct, frozen=True):
    """A row of `PARTS`: the name of a part, its opener, and the parts that the opener reads."""

    name: str
    opens: Callable[[DaemonParts], Awaitable[None]]
    needs: Sequence[str] = ()


@asynccontextmanager
async def open_parts(
    startup_result: StartupResult, clock: Clock, ids: Iterator[str]
) -> AsyncIterator[DaemonParts]:
    """Open all parts in the order of `PARTS`, and close them in reverse at the end of the block."""
    async with AsyncExitStack() as stack:
        parts = DaemonParts(startup_result, clock, ids, stack)
        for part in PARTS:
            await part.opens(parts)
        yield parts


async def _policies(parts: DaemonParts) -> None:
    """Read the job policies first: an invalid policy prevents the start of all parts."""
    from daemon.jobspec.policies import JobPolicySet

    parts.policies = JobPolicySet(parts.config.job_policies)


async def _store(parts: DaemonParts) -> None:
    directory = parts.config.store_dir
    parts.store = await parts.enter(
        open_store(
            directory,
            cluster_id=next(parts.ids),
            now=parts.clock.now(),
            is_locked=True,
            # Without the key, the daemon cannot use the store, and an older program still can.
            before_migration=partial(check_root_key, directory, parts.begun.source),
        )
    )
    delete_partial(directory)
    # A damaged database must stop the start: later, fences would contain the error.
    parts.store.read(lambda db: db.table_index("nodes"))


async def _fences(parts: DaemonParts) -> None:
    parts.fences = await parts.enter(open_fences(parts.store, parts.clock, parts.config.store_dir))


async def _launcher(parts: DaemonParts) -> None:
    parts.launcher = await parts.enter(open_launcher(parts.begun.channel))


async def _seal(parts: DaemonParts) -> None:
    parts.seal = await open_seal(parts.store, parts.begun.source, parts.clock.now())


async def _issuer(parts: DaemonParts) -> None:
    from daemon.identity.issuer import open_issuer

    parts.issuer = await parts.enter(
        open_issuer(parts.store, parts.seal, parts.clock, parts.ids, parts.fences)
    )


async def _tokens(parts: DaemonParts) -> None:
    config = parts.config
    parts.tokens = await parts.enter(
        open_tokens(
            parts.store,
            parts.clock,
            parts.seal,
            asks=config.asks_for_tokens,
            workload_of=parts.issuer.workload,
            lock_out=LockoutPolicy(config.lockout_threshold, config.lockout_seconds * SECOND),
            fences=parts.fences,
        )
    )


async def _first_token(parts: DaemonParts) -> None:
    """Create the first token of a new store, and log the path of its secret."""
    if parts.config.dev:
        return
    from daemon.acl.bootstrap import bootstrap_on_first_start

    secret, accessor = next(parts.ids), next(parts.ids)
    path = await bootstrap_on_first_start(
        parts.store,
        parts.tokens,
        parts.config.store_dir,
        secret=secret,
        accessor=accessor,
        now=parts.clock.now(),
    )
    if path is not None:
        log.info("the secret of the first management token is in %s", path)


async def _audit(parts: DaemonParts) -> None:
    parts.audit = await parts.enter(
        open_audit(parts.store, parts.clock, parts.seal, parts.config, parts.fences)
    )


async def _listeners(parts: DaemonParts) -> None:
    """Take over the sockets of the API, and complete the settings with the actual port."""
    from daemon.web.connections import listeners_at, wrapper_listeners_at

    parts.listeners = listeners_at(parts.begun.listening_sockets)
    parts.complete(msgspec.structs.replace(parts.config, port=parts.listeners.port))
    parts.wrapper_listeners = wrapper_listeners_at(parts.begun.listening_sockets)


async def _engine(parts: DaemonParts) -> None:
    """Open the backend for cluster pools, if the settings have a listener for cluster hosts.

    Complete the settings with the URL that cluster hosts use.
    """
    parts.engine = None
    if parts.wrapper_listeners is None:
        return
    from daemon.runner.drivers.slurm.backend import open_engine

    parts.engine = await parts.enter(
        open_engine(
            parts.store,
            parts.clock,
            parts.config,
            launcher=parts.launcher,
            own=ROOT if parts.begun.welcome.is_root else os.geteuid(),
            port=parts.wrapper_listeners.port,
            fresh=partial(secrets.token_hex, 32),
            fences=parts.fences,
        )
    )
    parts.complete(msgspec.structs.replace(parts.config, wrapper_url=parts.engine.url))


async def _traces(parts: DaemonParts) -> None:
    """Record and send spans if a receiver is set. Otherwise, no OTLP module is imported."""
    config = parts.config
    parts.otlp = None
    if not config.otlp_url:
        return
    from daemon.otlp.encoding import resource_of
    from daemon.otlp.sender import OtlpReceiver, open_traces

    permit = partial(egress_policy.check, own_ports=egress_policy.own_ports(config))
    parts.otlp = OtlpReceiver(config.otlp_url, permit, partial(_token_of, config.otlp_token_file))
    await parts.enter(
        open_traces(
            parts.otlp,
            parts.fences,
            resource_of(config.node_name, config.region),
            now=parts.clock.now,
            random=random.SystemRandom().random,
            percent=config.otlp_percent,
        )
    )


def _token_of(file: Path) -> str:
    """Return the OTLP receiver's token from `file`; empty if no file is set.

    Raises `ReceiverFailed`.
    """
    if file == Path():
        return ""
    from daemon.notify.channels import DeliveryFailed
    from daemon.notify.delivery import secret_of
    from daemon.otlp.sender import ReceiverFailed
    from storage.records.notification import Receiver, ReceiverKind

    try:
        return secret_of(Receiver(kind=ReceiverKind.WEBHOOK, secret_file=str(file)), {})
    except DeliveryFailed as error:
        raise ReceiverFailed(str(error), pause=0) from error


async def _metrics(parts: DaemonParts) -> None:
    """Send the metrics, if an OTLP receiver is set."""
    interval = parts.config.otlp_metrics_seconds
    if parts.otlp is None or not interval:
        return
    from daemon.api.cluster.gauges import gauges
    from daemon.otlp.encoding import resource_of
    from daemon.otlp.metrics import open_metrics

    await parts.enter(
        open_metrics(
            parts.otlp,
            parts.fences,
            resource_of(parts.config.node_name, parts.config.region),
            partial(gauges, parts.context),
            now=parts.clock.now,
            interval=interval,
        )
    )


async def _runner(parts: DaemonParts) -> None:
    from daemon.acl.task_tokens import TaskTokens
    from daemon.runner.node import RunnerDependencies, open_runner
    from daemon.variables.task_reader import TaskVariableReader
    from daemon.variables.task_secrets import TaskSecretStore

    begun, store, config = parts.begun, parts.store, parts.config
    parts.runner = await parts.enter(
        open_runner(
            RunnerDependencies(
                store=store,
                clock=parts.clock,
                config=config,
                ids=parts.ids,
                signer=parts.issuer,
                variables=TaskVariableReader(store, parts.seal, asks=config.asks_for_tokens),
                credentials=TaskTokens(store, parts.tokens, parts.clock),
                launcher=parts.launcher,
                holding=begun.holding,
                guard=begun.guard,
                listeners=port_listeners.listeners_on,
                fences=parts.fences,
                pool_drivers=parts.engine.drivers if parts.engine else {},
                is_separated=parts.is_separated,
                secret_keeper=TaskSecretStore(store, parts.seal),
            )
        )
    )


async def _evals(parts: DaemonParts) -> None:
    from daemon.evals.gc import retention
    from daemon.evals.worker import open_evals

    await parts.enter(
        open_evals(
            parts.store,
            parts.clock,
            parts.ids,
            retention(parts.config),
            parts.fences,
            port_listeners.ports,
            max_count=parts.config.job_max_count,
            begins=parts.is_ready,
        )
    )


async def _periodic(parts: DaemonParts) -> None:
    from daemon.jobs.periodic import open_periodic

    await parts.enter(
        open_periodic(
            parts.store,
            parts.clock,
            parts.ids,
            parts.fences,
            most_specs=parts.config.job_max_specs,
            begins=parts.is_ready,
        )
    )


async def _child_limits(parts: DaemonParts) -> None:
    from daemon.jobs.child_limits import open_children

    await parts.enter(open_children(parts.store, parts.clock, parts.ids, parts.fences))


async def _triggers(parts: DaemonParts) -> None:
    from daemon.jobspec.budgets import Budgets

    await parts.enter(
        open_triggers(parts.store, parts.clock, parts.ids, parts.fences, Budgets.of(parts.config))
    )


@asynccontextmanager
async def open_triggers(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, budgets: "Budgets"
) -> AsyncIterator[None]:
    """While the block runs, dispatch the followers of a job when one of its runs has ended."""
    async with trio.open_nursery() as nursery:
        loop = partial(_follow_jobs, store, clock, ids, fences, budgets)
        nursery.start_soon(fences.keep_running, "triggers", loop)
        yield
        nursery.cancel_scope.cancel()


async def _follow_jobs(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, budgets: "Budgets"
) -> None:
    while True:
        with store.watch(ARRIVED) as change:
            if not store.read(runs.any_follows):
                await change.wait()
                continue
        from daemon.jobs.triggers import follow_triggers  # imported late: few jobs follow others

        await follow_triggers(store, clock, ids, fences, budgets)


async def _queues(parts: DaemonParts) -> None:
    await parts.enter(open_queues(parts.store, parts.clock, parts.ids, parts.fences))


@asynccontextmanager
async def open_queues(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences
) -> AsyncIterator[None]:
    """While the block runs, grant free slots of queues to waiting runs."""
    async with trio.open_nursery() as nursery:
        loop = partial(_serve_queues, store, clock, ids, fences)
        nursery.start_soon(fences.keep_running, "queues", loop)
        yield
        nursery.cancel_scope.cancel()


async def _serve_queues(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    while True:
        with store.watch(SLOTS_FREE) as change:
            if not store.read(runs.any_queue_changed):
                await change.wait()
                continue
        from daemon.jobs.queues import grant_slots  # imported late: few jobs have a queue

        await grant_slots(store, clock, ids, fences)


async def _freezes(parts: DaemonParts) -> None:
    await parts.enter(
        open_freezes(
            parts.store,
            parts.clock,
            parts.ids,
            parts.fences,
            per_second=parts.config.thaw_per_second,
        )
    )


@asynccontextmanager
async def open_freezes(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, *, per_second: int
) -> AsyncIterator[None]:
    """While the block runs, end freezes on time, and release the jobs that a freeze has held.

    In each second, at most `per_second` jobs are released.
    """
    async with trio.open_nursery() as nursery:
        loop = partial(_end_freezes, store, clock, ids, fences, per_second=per_second)
        nursery.start_soon(fences.keep_running, "freezes", loop)
        yield
        nursery.cancel_scope.cancel()


async def _end_freezes(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, *, per_second: int
) -> None:
    while True:
        with store.watch(freezes.TOPIC) as change:
            if not store.read(freezes.any_work):
                await change.wait()
                continue
        from daemon.jobs.freezes import follow_freezes  # imported late: few daemons have freezes

        await follow_freezes(store, clock, ids, fences, per_second=per_second)


async def _locks(parts: DaemonParts) -> None:
    from daemon.variables.locks import open_locks

    await parts.enter(open_locks(parts.store, parts.clock, parts.fences))


async def _backups(parts: DaemonParts) -> None:
    from daemon.process.backups import open_backups

    await parts.enter(open_backups(parts.config, parts.clock, parts.fences))


async def _notify(parts: DaemonParts) -> None:
    from daemon.notify.sender import open_notify

    config, run = parts.config, None
    if config.notify_commands and parts.is_separated:
        from daemon.process.notify_commands import run_by_launcher

        run = partial(run_by_launcher, parts.launcher)
    parts.notify = await parts.enter(
        open_notify(
            parts.store,
            parts.clock,
            parts.seal,
            parts.fences,
            commands=config.notify_commands,
            receivers=config.notify_receivers,
            node_name=config.node_name,
            permit=partial(egress_policy.check, own_ports=egress_policy.own_ports(config)),
            random=random.SystemRandom().random,
            site=config.notify_link.rstrip("/") or config.address,
            run=run,
        )
    )


async def _dev_cloud(parts: DaemonParts) -> None:
    """Open the simulated cloud of development mode, if enabled, and use its addresses."""
    if not parts.config.dev_cloud:
        return
    from daemon.identity.devcloud import open_devcloud

    cloud = await parts.enter(open_devcloud(parts.clock, parts.config.dev_cloud_port))
    parts.complete(cloud.as_cloud_of(parts.config))


async def _signing_key(parts: DaemonParts) -> None:
    """Wait for the first signing key of a new store."""
    await parts.issuer.has_key()


async def _login(parts: DaemonParts) -> None:
    from daemon.identity.lazy_methods import open_door

    store, clock, seal, ids = parts.store, parts.clock, parts.seal, parts.ids
    tokens, issuer, config, fences = parts.tokens, parts.issuer, parts.config, parts.fences

    def opening() -> "AbstractAsyncContextManager[LoginMethods]":
        from daemon.identity.methods import open_methods

        return open_methods(store, clock, seal, tokens, issuer, ids, config, fences)

    parts.login = await parts.enter(open_door(store, opening, fences))


async def _dev_login(parts: DaemonParts) -> None:
    """Set up a login method for the simulated cloud, if it is enabled."""
    if not parts.config.dev_cloud:
        return
    from daemon.identity.dev_setup import prepare

    await prepare(parts.store, await parts.login.methods(), parts.clock, parts.ids)


async def _context(parts: DaemonParts) -> None:
    """Create the context with all parts that request handlers use."""
    from daemon.variables.task_secrets import JobMasks, OutputMatchers

    parts.context = AppContext(
        config=parts.config,
        store=parts.store,
        clock=parts.clock,
        ids=parts.ids,
        seal=parts.seal,
        audit=parts.audit,
        issuer=parts.issuer,
        tasks=parts.runner,
        logs=parts.runner.logs,
        fences=parts.fences,
        notify=parts.notify,
        tokens=parts.tokens,
        rights=cache(_rights),
        door=parts.login,
        policies=parts.policies,
        wrappers=parts.engine.wrapper_api if parts.engine else None,
        output=OutputMatchers(parts.store, parts.seal),
        job_masks=JobMasks(parts.store, parts.seal),
        certificates=partial(_certificates, parts),
    )


def _certificates(parts: DaemonParts, now: int) -> dict[str, float]:
    """Return the remaining validity of the certificates in seconds, by setting."""
    if not (contexts := parts.tls_contexts):
        return {}
    # Imported late: most daemons have no certificate.
    from daemon.web.certificate_files import remaining_seconds

    return remaining_seconds(contexts, now)


def _rights() -> "RouteRights":
    # Imported late: few requests ask which permission another request needs.
    from daemon.api.routes import ROUTES
    from daemon.api.vault_routes import ENDPOINTS
    from daemon.web.rights import RouteRights

    return RouteRights(ROUTES, ENDPOINTS)


async def _wrapper_server(parts: DaemonParts) -> None:
    """Answer the wrappers on cluster hosts, if cluster hosts can connect."""
    if parts.engine is None or parts.wrapper_listeners is None:
        return
    from daemon.api import wrapper
    from daemon.web.server import open_web, public_context

    await parts.enter(
        open_web(
            public_context(parts.context),
            wrapper.routes(),
            (),
            parts.wrapper_listeners.places,
            most=wrapper.MOST,
            authenticate_wrapper=wrapper.authenticate_wrapper(),
        )
    )
    parts.stack.callback(parts.engine.wrapper_api.close)


async def _public_server(parts: DaemonParts) -> None:
    """Serve public documents at a separate listener, if the settings define it."""
    from daemon.api.vault_routes import PUBLIC
    from daemon.web.connections import public_listeners_at
    from daemon.web.server import open_web, public_context

    if listeners := public_listeners_at(parts.begun.listening_sockets):
        await parts.enter(open_web(public_context(parts.context), (), PUBLIC, listeners))


async def _server(parts: DaemonParts) -> None:
    from daemon.api.routes import ROUTES
    from daemon.api.vault_routes import ENDPOINTS
    from daemon.ui.routes import PAGES
    from daemon.web.server import open_web

    await parts.enter(open_web(parts.context, ROUTES, ENDPOINTS, parts.listeners.places, PAGES))


# A part that needs `listeners` or `engine` reads the settings that these complete.
PARTS = (
    Part("policies", _policies),
    Part("store", _store),
    Part("fences", _fences, ("store",)),
    Part("launcher", _launcher),
    Part("seal", _seal, ("store",)),
    Part("issuer", _issuer, ("store", "fences", "seal")),
    Part("tokens", _tokens, ("store", "fences", "seal", "issuer")),
    Part("first token", _first_token, ("store", "tokens")),
    Part("audit", _audit, ("store", "fences", "seal")),
    Part("listeners", _listeners),
    Part("traces", _traces, ("fences", "listeners")),
    Part("engine", _engine, ("store", "fences", "launcher", "listeners")),
    Part(
        "runner",
        _runner,
        ("store", "fences", "launcher", "seal", "issuer", "tokens", "listeners", "engine"),
    ),
    Part("evals", _evals, ("store", "fences")),
    Part("periodic", _periodic, ("store", "fences")),
    Part("child limits", _child_limits, ("store", "fences")),
    Part("triggers", _triggers, ("store", "fences")),
    Part("queues", _queues, ("store", "fences")),
    Part("freezes", _freezes, ("store", "fences")),
    Part("locks", _locks, ("store", "fences")),
    Part("backups", _backups, ("fences",)),
    Part("notify", _notify, ("store", "fences", "launcher", "seal", "listeners")),
    Part("dev cloud", _dev_cloud),
    Part("signing key", _signing_key, ("issuer",)),
    Part("login", _login, ("store", "fences", "seal", "issuer", "tokens", "dev cloud")),
    Part("dev login", _dev_login, ("store", "dev cloud", "login")),
    Part(
        "context",
        _context,
        (
            "policies",
            "store",
            "fences",
            "seal",
            "issuer",
            "tokens",
            "audit",
            "engine",
            "runner",
            "notify",
            "login",
        ),
    ),
    Part("metrics", _metrics, ("fences", "traces", "context")),
    Part("wrapper server", _wrapper_server, ("listeners", "engine", "context")),
    Part("public server", _public_server, ("context",)),
    Part("server", _server, ("listeners", "context")),
)
