"""Sensitive variables of job files: found by their job, masked after each change, and deleted."""

from functools import partial

import pytest

from daemon.acl.seal import EnvelopeCipher
from daemon.variables import job_secrets
from daemon.variables.task_secrets import JobMasks, TaskSecretStore, matcher_of
from storage.queries import jobs
from storage.records.codec import encode
from storage.store import Store
from storage.writer import Transaction
from tests.samples import job


@pytest.fixture
def seal() -> EnvelopeCipher:
    return EnvelopeCipher({1: bytes(32)})


async def keep(store: Store, seal: EnvelopeCipher, job_id: str, version: int, *values: str) -> None:
    def write(tx: Transaction) -> None:
        if jobs.current(tx, "default", job_id) is None:
            jobs.append_version(tx, job(job_id))
        job_secrets.keep(tx, seal, ("default", job_id, version), values)

    await store.write(write)


async def test_values_belong_to_all_versions_of_one_job(store: Store, seal: EnvelopeCipher) -> None:
    kept = TaskSecretStore(store, seal)
    await keep(store, seal, "a", 0, "first value")
    await keep(store, seal, "a", 10, "second value")
    await keep(store, seal, "a/b", 0, "of another job")
    assert await kept.of_job("default", "a") == ["first value", "second value"]
    assert await kept.of_job("default", "a/b") == ["of another job"]
    assert await kept.of_job("other", "a") == []


async def test_masks_follow_each_change(store: Store, seal: EnvelopeCipher) -> None:
    masks = JobMasks(store, seal)
    assert await masks.matcher() is None
    await keep(store, seal, "a", 0, "first value")
    found = await masks.matcher()
    assert found is not None
    assert "first value" not in found.mask_text("the first value")
    await keep(store, seal, "a", 1, "second value")
    later = await masks.matcher()
    assert later is not None
    assert "second value" not in later.mask_text("first value, second value")
    assert await masks.matcher() is later


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

    async def has_logs(alloc_id: str) -> bool:
        return False

    await store.write(partial(_execute, sql="DELETE FROM jobs WHERE id = 'a'"))
    await kept.tidy(has_logs)
    assert await kept.of_job("default", "a") == ["first value"]  # an event shows the job
    await store.write(partial(_execute, sql="DELETE FROM events"))
    await kept.tidy(has_logs)
    assert await kept.of_job("default", "a") == []
    assert await kept.of_job("default", "b") == ["second value"]
    found = await masks.matcher()
    assert found is not None
    assert found.mask_text("first value") == "first value"


def _execute(tx: Transaction, *, sql: str) -> None:
    tx.execute(sql, {})
