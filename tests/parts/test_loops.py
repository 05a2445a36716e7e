"""Every loop of the daemon is fenced: an error in one unit affects only that unit, and the fault is
reported."""

import ast
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.acl import audit_sinks
from daemon.acl.audit import open_audit
from daemon.acl.keyring import Keyring
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore
from daemon.config.settings import Settings
from daemon.evals import gc
from daemon.evals import node_actions as nodes_module
from daemon.evals.gc import RetentionLimits, collect_garbage
from daemon.evals.node_actions import drain_node, watch_drains
from daemon.fences import Fences
from daemon.identity.issuer import open_issuer
from daemon.jobs.child_limits import open_children
from daemon.jobspec.budgets import Budgets
from daemon.net.http_client import allow_all
from daemon.process import backups
from daemon.runner.alloc import disk_usage
from daemon.runner.logs.rotation import LogRotator
from daemon.runner.services.checks import CheckRunner
from daemon.variables import change
from daemon.variables.change import VariableKey
from daemon.variables.locks import open_locks
from storage.queries import (
    concurrency,
    freezes,
    jobs,
    nodes,
    tokens,
    triggers,
    variables,
)
from storage.queries.faults import CLOCK
from storage.queries.variables import VariableLock
from storage.records.acl import Token
from storage.records.base import SECOND
from storage.records.freeze import Freeze
from storage.records.job import Parameterized
from storage.records.node import DrainSpec
from storage.records.service import CheckStatus
from storage.records.trigger import JobTrigger, TriggerState
from storage.store import Store
from tests.parts.evals.cluster import Cluster, Ticking
from tests.parts.runner.endpoints import nothing_runs, probe
from tests.samples import NOW, job
from tests.time_limits import HAPPENS_WITHIN

ROOT = Path(__file__).parent.parent.parent
SEAL = EnvelopeCipher({1: bytes(32)})

# Background loops of the parts, and why they need no separate fence.
APART = {
    "storage/store.py:open_store:writer.run": "the writer: without it nothing goes on",
    "storage/store.py:open_store:store.report_damage": "tells once of a damage, and ends",
    "daemon/launcher/client.py:open_launcher:launcher.run": "without a launcher nothing goes on",
    "daemon/launcher/client.py:open_launcher:launcher.probe_bridge": "it asks the launcher once, and ends",
    "daemon/identity/issuer.py:open_issuer:_start_rotation": "waits for the first key; then it is fenced",
    "daemon/identity/devcloud.py:open_devcloud:trio.serve_listeners": "development only",
    "daemon/runner/node.py:open_runner:runner.run": "its loops are fenced",
    "daemon/runner/node.py:open_runner:remove_unfinished": "runs once, and contains each failure",
    "daemon/runner/node.py:open_runner:clusters.mirror.run": "its loops are fenced",
    "daemon/runner/node.py:NodeRunner.run:self._follow_changes": "fenced, once it has begun",
    "daemon/web/server.py:open_web:serve": "each connection and request is contained",
    "daemon/process/main.py:serve:_on_signals": "waits for the end",
    "daemon/process/main.py:_operate:_reload_on_hangup": "reads settings, and contains what is wrong with them",
    "daemon/process/main.py:_operate:run_watchdog": "what fails there is to be noticed by the service manager",
}
STARTS = {"start_soon", "start"}


def started() -> Iterator[str]:
    """Yield the calls that start a task for the lifetime of the daemon, unless it is fenced."""
    for file in [*ROOT.glob("daemon/**/*.py"), *ROOT.glob("storage/*.py")]:
        name = str(file.relative_to(ROOT))
        if name.startswith(("daemon/cli/", "daemon/web/websocket")):
            continue
        for function, within in _functions(ast.parse(file.read_text()), ""):
            is_part = function.name.startswith("open_") and any(
                ast.unparse(item) == "asynccontextmanager" for item in function.decorator_list
            )
            if is_part or f"{name}:{within}" in (
                *("daemon/process/main.py:serve", "daemon/process/main.py:_operate"),
                "daemon/runner/node.py:NodeRunner.run",
            ):
                for call in _starts(function):
                    yield f"{name}:{within}:{ast.unparse(call.args[0])}"


def _functions(tree: ast.AST, within: str) -> Iterator[tuple[ast.AsyncFunctionDef, str]]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.AsyncFunctionDef):
            yield child, within + child.name
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")


def _starts(function: ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in STARTS
            and "nursery" in ast.unparse(node.func.value)
        ):
            yield node


def test_every_loop_of_a_part_is_fenced() -> None:
    found = list(started())
    bare = {line for line in found if not line.endswith("keep_running")}
    assert bare == set(APART)
    assert len(found) - len(bare) > 20


def test_every_part_of_the_daemon_is_covered() -> None:
    """Each part is an asynccontextmanager named `open_…`, which the test above searches for."""
    tree = ast.parse((ROOT / "daemon/process/parts.py").read_text())
    entered = {
        ast.unparse(call.args[0]).partition("(")[0]
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "parts.enter"
    }
    assert all(name.startswith("open_") for name in entered)
    assert len(entered) > 12


# Each kind of unit, and a test in which one unit of the kind fails and others do not.
KINDS = {
    "rotation": "test_rotation_that_raises_does_not_affect_others",
    "cloud token": "test_token_renewal_that_raises_does_not_affect_others",
    "warm cloud token": "test_failed_token_refresh_of_a_mount_does_not_affect_others",
    "keys of a directory": "test_directory_that_raises_does_not_affect_others",
    "periodic job": "test_failing_calendar_disables_its_job_until_the_calendar_changes",
    "thaw": "test_freeze_with_a_failing_end_delays_no_other",
    "trigger": "test_unreadable_ended_run_delays_no_other",
    "queue": "test_failing_queue_delays_no_other",
    "held children": "test_queued_children_of_a_failing_parent_delay_no_others",
    "notification": "test_message_that_cannot_be_built_counts_as_a_failed_attempt",
    "check": "test_check_that_raises_fails_without_affecting_its_allocation",
    "disk usage": "test_failed_disk_measurement_delays_no_other_allocation",
    "log": "test_unreadable_log_delays_no_other",
    "allocation": "test_unreadable_row_affects_only_its_unit",
    "removal of an allocation": "test_failed_directory_removal_does_not_stop_the_daemon",
    "report": "test_failed_report_is_dropped_and_others_are_stored",
    "token": "test_failed_removal_of_a_token_affects_no_other",
    "lock": "test_failed_release_of_a_lock_affects_no_other",
    "drain": "test_failing_drain_delays_no_other",
    "evaluation": "test_unreadable_row_fails_only_its_evaluation",
    "collection round": "test_failed_collection_step_delays_no_other",
    "collection of children": "test_failed_deletion_of_children_delays_no_others",
    "deployment": "test_unreadable_row_affects_only_its_unit",
}
# Kinds of units for which the store has refused to record the failure.
UNMARKED = {"failed evaluation", "failed deployment"}
_KIND = re.compile(r'^_(?:FENCED\w*|UNMARKED) = (?:"([^"]+)"|faults\.CLOCK)', re.MULTILINE)


def test_each_kind_of_unit_has_a_test() -> None:
    texts = [file.read_text() for file in ROOT.glob("daemon/**/*.py")]
    kinds = [found[1] or CLOCK for text in texts for found in _KIND.finditer(text)]
    assert sorted(kinds) == sorted({*KINDS, *UNMARKED})
    tests = "".join(file.read_text() for file in ROOT.glob("tests/**/test_*.py"))
    assert [name for name in KINDS.values() if f"async def {name}(" not in tests] == []


# ---- one unit of each ----------------------------------------------------------------------------


class Broken(Exception):
    pass


def broken_for(is_bad: Callable[..., bool], real: Callable[..., Any]) -> Callable[..., Any]:
    def function(*given: Any, **named: Any) -> Any:
        if is_bad(*given, **named):
            raise Broken
        return real(*given, **named)

    return function


@asynccontextmanager
async def running(*loops: Callable[[], Awaitable[None]]) -> Any:
    async with trio.open_nursery() as nursery:
        for loop in loops:
            nursery.start_soon(loop)
        yield
        nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], object]) -> None:
    with trio.fail_after(HAPPENS_WITHIN):
        while not is_so():  # noqa: ASYNC110  # no event reports a fault
            await trio.sleep(0.005)


def named(fences: Fences, kind: str) -> list[str]:
    return [fault.key for fault in fences.faults() if fault.kind == kind]


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.join()
    return made


async def test_failed_removal_of_a_token_affects_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ticking()
    fences = Fences(clock)
    token_store = TokenStore(store, clock, Keyring(bytes(32)), asks=True)

    def put(tx: Any) -> None:
        for name in ("bad", "good", "better"):
            token = Token(accessor=name, created_at=NOW, expires_at=NOW + SECOND)
            tokens.add(tx, token, name.encode() * 8)

    await store.write(put)
    clock.time += 2 * SECOND
    is_bad = broken_for(lambda tx, accessor: accessor == "bad", tokens.remove)
    monkeypatch.setattr("daemon.acl.tokens.tokens.remove", is_bad)
    async with running(partial(token_store.remove_ended, fences)):
        await until(
            lambda: (
                store.read(lambda db: tokens.ended(db, clock.time, 9)) == ["bad"]
                and "bad" in named(fences, "token")
            )
        )


async def test_failed_release_of_a_lock_affects_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ticking()
    fences = Fences(clock)
    for path in ("bad", "good"):
        lock = VariableLock(id="mine", ttl=SECOND, delay=SECOND)
        name = VariableKey("default", path)
        await change.acquire_lock(store, SEAL, name, None, lock=lock, own_id="", now=NOW)

    def holder(path: str) -> str:
        found = store.read(lambda db: variables.find(db, "default", path))
        assert found is not None
        return found.lock.id

    is_bad = broken_for(lambda tx, entry, now: entry.path == "bad", variables.lose_lock)
    monkeypatch.setattr("daemon.variables.locks.variables.lose_lock", is_bad)
    clock.time += 2 * SECOND
    async with open_locks(store, clock, fences):
        await until(lambda: not holder("good") and named(fences, "lock") == ["default/bad"])
        assert holder("bad") == "mine"


async def test_queued_children_of_a_failing_parent_delay_no_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daemon.jobs import child_limits

    both = [("default", "bad"), ("default", "good")]
    released = []

    def release(namespace: str, parent_id: str, tx: Any, **named: Any) -> None:
        if parent_id == "bad":
            raise Broken
        released.append(parent_id)
        both.remove((namespace, parent_id))

    monkeypatch.setattr(child_limits.children, "parents_with_queued", lambda db: list(both))
    monkeypatch.setattr(child_limits, "release_children", release)
    fences = cluster.fences
    async with open_children(cluster.store, cluster.clock, cluster.ids, fences):
        await until(lambda: released and named(fences, "held children") == ["default/bad"])
        with trio.fail_after(HAPPENS_WITHIN):
            while not fences.faults()[0].is_closed:
                cluster.clock.time += 10 * SECOND
                await cluster.store.write(lambda tx: tx.publish("faults"))


async def test_freeze_with_a_failing_end_delays_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daemon.jobs import freezes as rules

    clock = Ticking()
    fences, ids = Fences(clock), (f"eval-{number}" for number in count())
    for name in ("bad", "good"):
        freeze = Freeze(id=name, namespace="default", begin=NOW, until=NOW + SECOND)
        await store.write(lambda tx, freeze=freeze: freezes.add(tx, freeze))
    is_bad = broken_for(lambda tx, freeze_id, now: freeze_id == "bad", rules.end_in_time)
    monkeypatch.setattr(rules, "end_in_time", is_bad)

    def not_ended() -> list[str]:
        return [freeze.id for freeze in store.read(lambda db: freezes.all_not_ended(db, 9))]

    clock.time += 2 * SECOND
    async with running(partial(rules.follow_freezes, store, clock, ids, fences, per_second=10)):
        await until(lambda: not_ended() == ["bad"] and named(fences, "thaw") == ["bad"])


async def test_failing_queue_delays_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon.jobs import queues as rules

    clock = Ticking()
    fences, ids = Fences(clock), (f"eval-{number}" for number in count())
    change = "INSERT INTO queues_changed (namespace, name) VALUES ('default', :name)"
    for name in ("bad", "good"):
        await store.write(lambda tx, name=name: tx.execute(change, {"name": name}))
    is_bad = broken_for(lambda tx, key, now, ids: key == ("default", "bad"), rules.serve)
    monkeypatch.setattr(rules, "serve", is_bad)

    def unserved() -> list[str]:
        return [name for _, name in store.read(lambda db: concurrency.changed(db, 9))]

    assert unserved() == ["bad", "good"]
    async with running(partial(rules.grant_slots, store, clock, ids, fences)):
        await until(lambda: unserved() == ["bad"] and named(fences, "queue") == ["default/bad"])


async def test_unreadable_ended_run_delays_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daemon.jobs import triggers as rules

    clock = Ticking()
    fences, ids = Fences(clock), (f"id-{number}" for number in count())

    def arrive(tx: Any) -> None:
        jobs.append_version(tx, job("report", type="batch", parameterized_job=Parameterized()))
        for name in ("bad", "good"):
            trigger = JobTrigger(
                id=0,
                namespace="default",
                job_id="report",
                source_namespace="default",
                source_id=name,
                run_job_id=name,
                number=1,
                version=0,
                attempt=1,
                status="succeeded",
                state=TriggerState.ARRIVED,
                ended=NOW,
            )
            tx.execute(triggers._ADD, {**msgspec.structs.asdict(trigger), "index": tx.index})

    await store.write(arrive)
    is_bad = broken_for(lambda db, trigger: trigger.source_id == "bad", rules.passed_on)
    monkeypatch.setattr(rules, "passed_on", is_bad)

    def arrived() -> list[str]:
        return [row.source_id for row in store.read(lambda db: triggers.undecided(db, 9))]

    budgets = Budgets.of(Settings())
    async with running(partial(rules.follow_triggers, store, clock, ids, fences, budgets)):
        await until(lambda: arrived() == ["bad"] and len(named(fences, "trigger")) == 1)


async def test_failing_drain_delays_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = cluster.store.read(nodes.list_all)
    await cluster.join(msgspec.structs.replace(first, id="bad"))
    for node_id in ("bad", first.id):
        await drain_node(
            cluster.store,
            node_id,
            DrainSpec(deadline=0),
            cluster.ids,
            mark_eligible=False,
            meta=None,
            accessor="",
            now=NOW,
        )
    real = nodes_module._go_on
    is_bad = broken_for(lambda tx, node_id, **_: node_id == "bad", real)
    monkeypatch.setattr(nodes_module, "_go_on", is_bad)

    def draining() -> list[str]:
        return [node.id for node in cluster.store.read(nodes.list_all) if node.drain]

    watch = partial(watch_drains, cluster.store, cluster.clock, cluster.ids, cluster.fences)
    async with running(watch):
        await until(lambda: draining() == ["bad"] and named(cluster.fences, "drain") == ["bad"])


async def test_failed_collection_step_delays_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = []

    async def collect(*_: Any) -> None:
        raise Broken

    async def collect_children(*_: Any) -> None:
        collected.append(None)

    monkeypatch.setattr("daemon.evals.gc.collect_once", collect)
    monkeypatch.setattr("daemon.evals.gc.collect_children", collect_children)
    async with running(
        partial(collect_garbage, cluster.store, cluster.clock, RetentionLimits(), cluster.fences)
    ):
        await until(lambda: collected)
    assert named(cluster.fences, "collection round") == ["expired objects"]


async def test_failed_deletion_of_children_delays_no_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences, collected = Fences(Ticking()), []

    async def collect(_: Store, key: tuple[str, str], now: int) -> None:
        if key[1] == "bad":
            raise Broken
        collected.append(key[1])

    both = [("default", "bad"), ("default", "good")]
    monkeypatch.setattr(gc.children, "parents", lambda db: both)
    monkeypatch.setattr(gc, "_collect_of", collect)
    await gc.collect_children(store, NOW, fences)
    assert (collected, named(fences, "collection of children")) == (["good"], ["default/bad"])


async def test_unreadable_log_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fences, looked = Fences(Ticking()), []

    async def trim(_: LogRotator, watched: Any) -> None:
        looked.append(watched.log.place[0])
        if watched.log.place[0] == "bad":
            raise Broken

    monkeypatch.setattr(LogRotator, "_trim", trim)
    sweeper = LogRotator(fences=fences)
    for name in ("bad", "good"):
        place = (name, "main", "stdout")
        log: Any = SimpleNamespace(place=place, forget=lambda: None, grow=lambda **_: None)
        sweeper.add(log, log)
    await sweeper.trim_all()
    assert looked == ["bad", "good"]
    assert named(fences, "log") == ["bad/main/stdout"]


async def test_failed_disk_measurement_delays_no_other_allocation() -> None:
    fences, told = Fences(Ticking()), []

    async def measure(alloc_id: str) -> Any:
        if alloc_id == "bad":
            raise Broken
        return SimpleNamespace(used=2)

    async def report_over_limit(used: int) -> None:
        told.append(used)

    tenants: Any = [
        SimpleNamespace(disk=1, id=name, report_over_limit=report_over_limit)
        for name in ("bad", "x")
    ]
    await disk_usage.notify_over_limit(tenants, measure, fences)
    assert (told, named(fences, "disk usage")) == ([2], ["bad"])


async def test_check_that_raises_fails_without_affecting_its_allocation(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    fences = Fences(Ticking())
    asked: list[str] = []

    async def ask(item: Any, *_: Any) -> tuple[CheckStatus, int, str]:
        asked.append(item.id)
        if item.id == "bad":
            raise Broken
        return CheckStatus.SUCCESS, 0, "ok"

    monkeypatch.setattr("daemon.runner.services.checks.run_check", ask)
    checks = CheckRunner(
        "web", lambda: NOW, lambda: None, lambda *_: None, nothing_runs, allow_all, fences
    )
    both = [
        msgspec.structs.replace(probe("tcp", 1, interval=SECOND, timeout=SECOND), id=name)
        for name in ("bad", "good")
    ]
    async with trio.open_nursery() as nursery:
        checks.follow(both, nursery)
        await trio.sleep(3.5)
        nursery.cancel_scope.cancel()
    assert asked.count("bad") == asked.count("good") == 4
    assert {result.id: result.status for result in checks.results} == {
        "bad": CheckStatus.FAILURE,
        "good": CheckStatus.SUCCESS,
    }
    assert named(fences, "check") == ["bad"]


async def test_audit_continues_after_an_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    clock = Ticking()
    fences, attempts = Fences(clock), []

    async def copy_to(*_: Any) -> None:
        attempts.append(None)
        raise Broken

    monkeypatch.setattr(audit_sinks, "copy_to", copy_to)
    config = Settings(audit_file=tmp_path / "copy")
    async with open_audit(store, clock, SEAL, config, fences):
        await until(lambda: len(attempts) > 2)
    assert named(fences, "loop") == ["audit copies by FileAuditSink"]


async def test_signing_key_rotation_continues_after_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    clock, attempts = Ticking(), []
    fences, ids = Fences(clock), iter(f"key-{number}" for number in range(9))
    async with open_issuer(store, SEAL, clock, ids, fences) as issuer:
        await issuer.has_key()

    def of_live_allocations(db: Any) -> set[str]:
        attempts.append(None)
        raise Broken

    monkeypatch.setattr("daemon.identity.issuer.signing.of_live_allocations", of_live_allocations)
    async with open_issuer(store, SEAL, clock, ids, fences) as issuer:
        await issuer.has_key()
        await until(lambda: len(attempts) > 2)
    assert named(fences, "loop") == ["signing keys"]


async def test_snapshots_continue_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    clock, attempts = Ticking(), []
    fences = Fences(clock)

    def wait(*_: Any, **__: Any) -> int:
        attempts.append(None)
        raise Broken

    monkeypatch.setattr(backups, "wait", wait)
    config = Settings(data_dir=tmp_path, snapshot_hours=1)
    with suppress(FileNotFoundError):  # the directory does not exist
        async with backups.open_backups(config, clock, fences):
            await until(lambda: len(attempts) > 2)
    assert named(fences, "loop") == ["snapshots"]
