"""The audit: a change and its entry are one write, refusals are bounded, secrets do not appear."""

import errno
import json
import os
import socket
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.acl import audit as module
from daemon.acl import audit_sinks
from daemon.acl.audit import Audit, open_audit
from daemon.acl.audit_sinks import FileAuditSink, JournalAuditSink, copy_to
from daemon.acl.seal import EnvelopeCipher
from daemon.config.settings import Settings
from storage.errors import Refused, StorageFull
from storage.queries import audit, jobs
from storage.records.audit import AuditEntry
from storage.store import Store
from storage.writer import Transaction
from tests.samples import NOW, job

SEAL = EnvelopeCipher({1: bytes(32)})


class Clock:
    time = NOW

    def now(self) -> int:
        return self.time


@pytest.fixture
def opened(store: Store) -> Audit:
    return Audit(store, Clock(), bytes(32))


def entries(store: Store) -> list[AuditEntry]:
    return store.read(lambda db: audit.after(db, 0))


def add_job(tx: Transaction) -> None:
    jobs.append_version(tx, job())


# ---- changes ------------------------------------------------------------------------------------


async def test_change_and_audit_entry_are_one_write(store: Store, opened: Audit) -> None:
    trail = opened.open_scope("POST", "/v1/jobs", "", "10.0.0.1")
    trail.set_caller("default", "secret")
    trail.known("accessor-1")
    with trail.watching():
        index = await store.write(lambda tx: (add_job(tx), tx.index)[1])
    (entry,) = entries(store)
    assert (entry.accessor, entry.method, entry.path) == ("accessor-1", "POST", "/v1/jobs")
    assert (entry.address, entry.namespace, entry.status) == ("10.0.0.1", "default", 200)
    assert store.read(lambda db: db.table_index("audit")) == index


async def test_change_without_effect_leaves_no_entry(store: Store, opened: Audit) -> None:
    trail = opened.open_scope("POST", "/v1/jobs", "", "")
    with trail.watching():
        await store.write(lambda tx: tx.last_index())
    assert entries(store) == []


async def test_failed_change_leaves_no_audit_entry(store: Store, opened: Audit) -> None:
    def fail(tx: Transaction) -> None:
        add_job(tx)
        raise Refused("no")

    trail = opened.open_scope("POST", "/v1/jobs", "", "")
    with trail.watching(), pytest.raises(Refused):
        await store.write(fail)
    assert entries(store) == []


async def test_request_has_one_audit_entry(store: Store, opened: Audit) -> None:
    trail = opened.open_scope("POST", "/v1/jobs", "", "")
    with trail.watching():
        await store.write(add_job)
        await store.write(add_job)
    await trail.acted()
    assert len(entries(store)) == 1


async def test_repeated_change_has_one_audit_entry(store: Store, opened: Audit) -> None:
    def change_many(tx: Transaction) -> None:
        many = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)"
        insert = "INSERT INTO namespaces SELECT 'n' || n, '{}', :index, :index FROM n"
        tx.execute(f"{many} {insert}", {"index": tx.index})

    async def ask(work: Callable[[Transaction], None]) -> None:
        trail = opened.open_scope("POST", "/v1/jobs", "", "10.0.0.1")
        with trail.watching():
            await store.write(work)
        trail.ended(200, "")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write, lambda _: None)  # the next writes wait for it
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, add_job)
        nursery.start_soon(ask, change_many)  # longer than the time that a write may take
    assert len(entries(store)) == 2


async def test_concurrent_writes_do_not_belong_to_this_request(store: Store, opened: Audit) -> None:
    trail = opened.open_scope("POST", "/v1/jobs", "", "")
    with trail.watching():
        pass
    await store.write(add_job)
    assert entries(store) == []


async def test_request_without_a_write_can_be_audited(store: Store, opened: Audit) -> None:
    await opened.open_scope("POST", "/v1/client/allocation/a/restart", "", "").acted()
    assert [entry.path for entry in entries(store)] == ["/v1/client/allocation/a/restart"]


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "noted"), [(200, False), (404, False), (500, False), (401, True), (403, True)]
)
async def test_only_refusals_are_audited_among_failures(
    store: Store, opened: Audit, status: int, noted: bool
) -> None:
    opened.open_scope("GET", "/v1/jobs", "", "").ended(status, "Permission denied")
    await opened.flush()
    assert bool(entries(store)) is noted


async def test_command_is_logged_as_a_hash_until_its_masks_are_known(
    store: Store, opened: Audit
) -> None:
    for masked in ("", "command=***"):
        trail = opened.open_scope("GET", "/v1/x", "task=a&command=secret", "")
        if masked:
            trail.set_query(masked)
        trail.ended(403, "no")
    await opened.flush()
    hashed = opened.hash("secret")
    assert [entry.query for entry in entries(store)] == [
        f"task=a&command={hashed}",
        "command=***",
    ]


async def test_flood_of_refusals_is_counted_instead_of_stored(
    store: Store, opened: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    for _ in range(10):
        opened.open_scope("GET", "/v1/jobs", "", "").ended(403, "")
    await opened.flush()
    found = entries(store)
    assert len(found) == 4
    assert "7 more requests were refused" in found[-1].reason


async def test_refusals_that_could_not_be_stored_are_stored_later(
    store: Store, opened: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Store, function: object) -> None:
        opened.open_scope("GET", "/second", "", "").ended(403, "")
        raise StorageFull

    opened.open_scope("GET", "/first", "", "").ended(403, "")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", fail)
        with pytest.raises(StorageFull):
            await opened.flush()
    assert opened._arrived.is_set()
    await opened.flush()
    assert [entry.path for entry in entries(store)] == ["/first", "/second"]
    assert not opened._arrived.is_set()


async def test_count_of_dropped_refusals_is_a_refusal_of_that_time(
    store: Store, opened: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 0)
    opened.open_scope("GET", "/v1/jobs", "", "").ended(403, "")
    await opened.flush()
    (entry,) = entries(store)
    assert (entry.time, entry.status, entry.method) == (NOW, 403, "")
    await opened.flush()
    assert len(entries(store)) == 1


async def test_the_last_refusals_are_written_at_the_end(store: Store) -> None:
    async with open_audit(store, Clock(), SEAL, Settings()) as opened:
        opened.open_scope("GET", "/v1/jobs", "", "").ended(403, "")
    assert len(entries(store)) == 1


async def test_refusals_are_written_gradually(store: Store) -> None:
    async with open_audit(store, Clock(), SEAL, Settings()) as opened:
        with store.watch(audit.TOPIC) as change:
            opened.open_scope("GET", "/v1/jobs", "", "").ended(403, "")
            with trio.fail_after(10):
                await change.wait()
        assert len(entries(store)) == 1


# ---- secrets, and texts of users ---------------------------------------------------------------


async def test_an_unknown_secret_appears_as_a_hash_of_this_installation(
    store: Store, opened: Audit
) -> None:
    for secret in ("guess", "guess", "other"):
        trail = opened.open_scope("GET", "/v1/jobs", "", "")
        trail.set_caller("default", secret)
        trail.ended(403, "")
    await opened.flush()
    first, second, third = (entry.secret_hash for entry in entries(store))
    assert first == second != third
    assert Audit(store, Clock(), b"x" * 32).hash("guess") != first
    assert b"guess" not in first.encode()


async def test_key_of_the_audit_hashes_is_stored(store: Store) -> None:
    hashes = set()
    for _ in range(2):
        async with open_audit(store, Clock(), SEAL, Settings()) as opened:
            hashes.add(opened.hash("secret"))
    assert len(hashes) == 1


async def test_values_with_secret_names_are_hashed(store: Store, opened: Audit) -> None:
    trail = opened.open_scope("POST", "/v1/x", "purge=true&token=hidden&client_secret=hidden", "")
    await trail.acted()
    (entry,) = entries(store)
    assert "hidden" not in entry.query
    assert entry.query.startswith("purge=true&token=")


async def test_line_break_cannot_forge_a_line(store: Store, opened: Audit) -> None:
    await opened.open_scope("POST", "/v1/x\n2026 root: POST /v1/y", "a\r\nb", "").acted()
    (entry,) = entries(store)
    assert "\n" not in entry.path + entry.query
    assert "\r" not in entry.query


async def test_endless_path_is_truncated(store: Store, opened: Audit) -> None:
    await opened.open_scope("POST", "/" + "x" * 10_000, "", "").acted()
    assert len(entries(store)[0].path) < 600


# ---- append-only ---------------------------------------------------------------------------------


async def test_audit_entry_can_be_neither_changed_nor_removed(store: Store, opened: Audit) -> None:
    for number in range(3):
        await opened.open_scope("POST", f"/v1/{number}", "", "").acted()
    with pytest.raises(Exception, match="append-only"):
        await store.write(lambda tx: tx.execute("UPDATE audit SET accessor = 'x'", {}))
    with pytest.raises(Exception, match="only the oldest"):
        await store.write(lambda tx: tx.execute("DELETE FROM audit WHERE number = 2", {}))
    assert len(entries(store)) == 3


async def test_old_audit_entries_are_deleted_in_steps(store: Store) -> None:
    for time in range(10):
        await store.write(
            lambda tx, at=time: audit.add(tx, AuditEntry(time=at, method="", path=""))
        )
    steps = [await store.write(lambda tx: audit.trim(tx, 7, 3)) for _ in range(4)]
    assert steps == [3, 3, 1, 0]
    assert [entry.time for entry in entries(store)] == [7, 8, 9]


async def test_objects_beyond_the_configured_number_are_deleted(store: Store) -> None:
    for time in range(10):
        await store.write(
            lambda tx, at=time: audit.add(tx, AuditEntry(time=at, method="", path=""))
        )
    steps = [await store.write(lambda tx: audit.trim(tx, 0, 3, most_entries=4)) for _ in range(3)]
    assert steps == [3, 3, 0]
    assert [entry.time for entry in entries(store)] == [6, 7, 8, 9]


async def test_objects_beyond_the_configured_age_are_deleted(store: Store) -> None:
    await store.write(lambda tx: audit.add(tx, AuditEntry(time=NOW, method="", path="old")))
    clock = Clock()
    clock.time = NOW + 2 * 86_400 * 10**9
    async with open_audit(store, clock, SEAL, Settings(audit_retention_days=1)):
        with trio.fail_after(10):
            while entries(store):
                await trio.lowlevel.checkpoint()


# ---- copies ---------------------------------------------------------------------------------------


def lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [json.loads(line)["Path"] for line in path.read_text().splitlines()]


async def copied(path: Path, count: int) -> list[str]:
    with trio.fail_after(10):
        while len(lines(path)) < count:
            await trio.lowlevel.checkpoint()
    return lines(path)


async def test_audit_file_gets_every_entry_once_after_a_restart(
    store: Store, opened: Audit, tmp_path: Path
) -> None:
    path = tmp_path / "audit.log"
    for first, second in (("/1", "/2"), ("/3", "/4")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy_to, store, FileAuditSink(path))
            await trio.testing.wait_all_tasks_blocked(0.05)
            await opened.open_scope("POST", first, "", "").acted()
            await copied(path, int(first[1:]))
            nursery.cancel_scope.cancel()
        await opened.open_scope("POST", second, "", "").acted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy_to, store, FileAuditSink(path))
        assert await copied(path, 4) == ["/1", "/2", "/3", "/4"]
        nursery.cancel_scope.cancel()
    assert os.stat(path).st_mode & 0o777 == 0o600


async def test_failed_copy_is_repeated_after_a_pause(
    store: Store, opened: Audit, autojump_clock: trio.testing.MockClock
) -> None:
    times, copied_paths = list[float](), list[str]()
    done = trio.Event()

    class FailingSink:
        def position(self) -> int:
            return 0

        def write(self, entries: Iterable[AuditEntry]) -> None:
            times.append(trio.from_thread.run_sync(trio.current_time))
            if len(times) < 3:
                raise OSError(errno.ENOSPC, "full")
            copied_paths.extend(entry.path for entry in entries)
            if copied_paths[-1] == "/2":
                trio.from_thread.run_sync(done.set)

    await opened.open_scope("POST", "/1", "", "").acted()
    await opened.open_scope("POST", "/2", "", "").acted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy_to, store, FailingSink())
        await done.wait()
        nursery.cancel_scope.cancel()
    assert copied_paths == ["/1", "/2"]
    assert all(later - earlier >= audit_sinks._PAUSE for earlier, later in pairwise(times))


async def test_audit_journal_has_a_field_for_each_part(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        entry = AuditEntry(
            time=NOW, method="GET", path="/v1/jobs", status=403, reason="no", accessor="me"
        )
        JournalAuditSink(tmp_path / "journal").write([entry])
        fields = dict(line.split("=", 1) for line in journal.recv(4096).decode().splitlines())
    assert fields["MESSAGE"] == "me: GET /v1/jobs: 403 no"
    assert fields["SYSLOG_IDENTIFIER"] == "steward-audit"
    assert fields["STEWARD_STATUS"] == "403"
