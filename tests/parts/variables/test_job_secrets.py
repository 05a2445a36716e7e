"""Sensitive variables of job files: found by their job, masked after each change, and deleted."""

import threading
from functools import partial

import msgspec
import pytest
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.text.masking import Matcher
from daemon.variables import job_secrets, task_secrets
from daemon.variables.task_secrets import JobMasks, TaskSecretStore, matcher_of
from storage.queries import allocations, events, jobs, secrets
from storage.records.codec import encode
from storage.store import Store
from storage.writer import Transaction
from tests.samples import NOW, job
from tests.unit.runner.placements import placed


@pytest.fixture
def seal() -> EnvelopeCipher:
    return EnvelopeCipher({1: bytes(32)})


A = ("default", "a")


async def keep(
    store: Store,
    seal: EnvelopeCipher,
    job_id: str,
    version: int,
    *values: str,
    namespace: str = "default",
) -> None:
    def write(tx: Transaction) -> None:
        if (found := jobs.current(tx, namespace, job_id)) is None:
            found = jobs.append_version(tx, job(job_id, namespace=namespace))
        job_secrets.keep(tx, seal, msgspec.structs.replace(found, version=version), values)

    await store.write(write)


async def test_values_apply_to_all_versions_of_one_job(store: Store, seal: EnvelopeCipher) -> None:
    task_secret_store = TaskSecretStore(store, seal)
    await keep(store, seal, "a", 0, "first value")
    await keep(store, seal, "a", 10, "second value")
    await keep(store, seal, "a/b", 0, "of another job")
    assert await task_secret_store.of_job("default", "a") == ["first value", "second value"]
    assert await task_secret_store.of_job("default", "a/b") == ["of another job"]
    assert await task_secret_store.of_job("other", "a") == []


async def test_masks_are_updated_with_each_change(store: Store, seal: EnvelopeCipher) -> None:
    masks = JobMasks(store, seal)
    assert await masks.matcher(A) is None
    await keep(store, seal, "a", 0, "first value")
    matcher = await masks.matcher(A)
    assert matcher is not None
    assert "first value" not in matcher.mask_text("the first value")
    await keep(store, seal, "a", 1, "second value")
    later = await masks.matcher(A)
    assert later is not None
    assert "second value" not in later.mask_text("first value, second value")
    assert await masks.matcher(A) is later


async def test_values_of_a_job_neither_mask_nor_unmask_another_job(
    store: Store, seal: EnvelopeCipher
) -> None:
    await keep(store, seal, "a", 0, "first value")
    await keep(store, seal, "b", 0, *(f"value number {number}" for number in range(1000)))
    masks = JobMasks(store, seal)
    found, other = await masks.matcher(A), await masks.matcher(("default", "b"))
    assert found is not None
    assert other is not None
    shown = found.mask_text("first value, value number 7")
    assert "first value" not in shown
    assert shown.endswith(", value number 7")
    assert other.mask_text("first value") == "first value"


async def test_concurrent_requests_build_a_matcher_once(
    store: Store, seal: EnvelopeCipher, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(store, seal, "a", 0, "first value")
    masks, threads = JobMasks(store, seal), list[int]()
    make = task_secrets.matcher_of

    def counted(values: list[str]) -> Matcher:
        threads.append(threading.get_ident())
        return make(values)

    monkeypatch.setattr(task_secrets, "matcher_of", counted)
    matchers: list[Matcher | None] = []

    async def look() -> None:
        matchers.append(await masks.matcher(A))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(look)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert len({id(matcher) for matcher in matchers}) == 1
    await keep(store, seal, "b", 0, "second value")
    assert await masks.matcher(A) is matchers[0]
    assert len(threads) == 1


async def test_job_with_many_values_does_not_evict_others_from_the_cache(
    store: Store, seal: EnvelopeCipher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_secrets, "_MOST_OF_JOBS", 9000)
    small = [f"small-{number}" for number in range(300)]
    for job_id in small:
        await keep(store, seal, job_id, 0, f"value 7 of {job_id}")
    for job_id in ("large", "larger"):
        values = (f"value {number} of {job_id}" for number in range(600))
        await keep(store, seal, job_id, 0, *values)
    made: list[int] = []
    make = task_secrets.matcher_of

    def counted(values: list[str]) -> Matcher:
        made.append(len(values))
        return make(values)

    monkeypatch.setattr(task_secrets, "matcher_of", counted)
    masks = JobMasks(store, seal)
    for job_id in [*small, "large", "larger"] * 2:
        matcher = await masks.matcher(("default", job_id))
        assert matcher is not None
        assert "value" not in matcher.mask_text(f"value 7 of {job_id}")
    assert made.count(1) == len(small)
    assert sum(one.weight for one in masks._made.values()) <= 9000


@pytest.mark.parametrize("value", ['with "quotes" in it', "a\\backslash and\ttab", "grüße aus <X>"])
def test_value_is_found_in_json(value: str) -> None:
    document = encode({"Key": [f"before {value} after"]})
    masked = matcher_of([value]).mask(document)
    assert len(masked) == len(document)
    assert b"masked" in masked


async def test_values_of_a_purged_job_are_deleted_after_its_events(
    store: Store, seal: EnvelopeCipher
) -> None:
    kept, masks = TaskSecretStore(store, seal), JobMasks(store, seal)
    await keep(store, seal, "a", 0, "first value")
    await keep(store, seal, "b", 0, "second value")

    await store.write(partial(_execute, sql="DELETE FROM jobs WHERE id = 'a'"))
    await kept.tidy(_has_no_logs)
    assert await kept.of_job("default", "a") == ["first value"]  # an event still contains the job
    await store.write(partial(_execute, sql="DELETE FROM events"))
    await kept.tidy(_has_no_logs)
    assert await kept.of_job("default", "a") == []
    assert await kept.of_job("default", "b") == ["second value"]
    assert await masks.jobs() == {("default", "b")}
    assert await masks.matcher(A) is None


async def test_new_registration_after_a_purge_keeps_the_old_values(
    store: Store, seal: EnvelopeCipher
) -> None:
    task_secret_store = TaskSecretStore(store, seal)
    await keep(store, seal, "a", 0, "first value")

    def purge(tx: Transaction) -> None:
        found = jobs.current(tx, "default", "a")
        assert found is not None
        jobs.purge(tx, found)

    await store.write(purge)
    await keep(store, seal, "a", 0, "second value")
    await task_secret_store.tidy(_has_no_logs)
    assert await task_secret_store.of_job("default", "a") == ["first value", "second value"]
    await store.write(partial(_execute, sql="DELETE FROM events"))
    await task_secret_store.tidy(_has_no_logs)
    assert await task_secret_store.of_job("default", "a") == ["second value"]


async def test_values_of_unused_versions_are_deleted(store: Store, seal: EnvelopeCipher) -> None:
    task_secret_store = TaskSecretStore(store, seal)
    await keep(store, seal, "a", 0, "first value")  # used by a version of the job
    await keep(store, seal, "a", 1, "second value")  # used by no version
    await keep(store, seal, "a", 2, "third value")  # used by an allocation
    await keep(store, seal, "a", 3, "fourth value")  # used by an event
    run = placed(job("a"), "n1", "a1", job_version=2)

    def write(tx: Transaction) -> None:
        allocations.add(tx, run, NOW)
        payload = '{"Version":3}'
        events.add(tx, "Job", "JobRegistered", namespace="default", key="a", payload=payload)

    await store.write(write)
    await task_secret_store.tidy(_has_no_logs)
    assert await task_secret_store.of_job("default", "a") == [
        "first value",
        "third value",
        "fourth value",
    ]


async def test_values_of_a_parent_are_kept_for_its_children(
    store: Store, seal: EnvelopeCipher
) -> None:
    task_secret_store = TaskSecretStore(store, seal)
    await keep(store, seal, "a", 5, "first value")
    await store.write(lambda tx: jobs.append_version(tx, job("a/dispatch-1")) and None)
    await task_secret_store.tidy(_has_no_logs)
    assert await task_secret_store.of_job("default", "a") == ["first value"]


async def test_values_of_paths_without_a_create_index_are_masked(
    store: Store, seal: EnvelopeCipher
) -> None:
    task_secret_store = TaskSecretStore(store, seal)
    await keep(store, seal, "a", 0, "second value")
    for version, value in ((0, "first value"), (9, "of a version that is gone")):
        place = f"job-variables/default/a/{version:010d}"
        sealed = seal.seal(encode([value]), place)
        await store.write(partial(secrets.put, path=place, sealed=sealed))
    await task_secret_store.tidy(_has_no_logs)
    assert await task_secret_store.of_job("default", "a") == ["first value", "second value"]


async def _has_no_logs(alloc_id: str) -> bool:
    return False


def _execute(tx: Transaction, *, sql: str) -> None:
    tx.execute(sql, {})
