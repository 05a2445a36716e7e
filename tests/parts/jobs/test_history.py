"""Reverting to a version, and the responses about versions."""

from itertools import repeat
from typing import Any

import msgspec
import pytest

from daemon.jobs.register import JobRegisterRequest, RegistrationContext, register_job
from daemon.jobs.stop import stop_job
from daemon.jobs.version_history import (
    JobRevertRequest,
    JobStabilityRequest,
    TagVersionRequest,
    revert_job,
    set_stable,
    tag_version,
    untag_version,
)
from storage.errors import Invalid, StewardError
from storage.queries import jobs, submissions
from storage.records.job import Job, Submission, VersionTag
from storage.store import Store
from tests.samples import NOW
from tests.unit.jobspec.build import job as given
from tests.unit.jobspec.recorded import document

AROUND = RegistrationContext(region="global", node_pools={"default"})


async def register(store: Store, source: str = "", **fields: Any) -> None:
    request = JobRegisterRequest(
        job=document(given(ID="web", Type="batch", **fields)),
        submission=Submission(source=source, format="hcl2") if source else None,
    )
    await register_job(
        store,
        request,
        namespace=None,
        surroundings=AROUND,
        now=NOW,
        eval_id=f"e-{fields}",
        registrar="",
        scaling_ids=repeat("policy"),
    )


async def three_versions(store: Store) -> None:
    await register(store, "first", Meta={"v": "0"})
    await register(store, Meta={"v": "1"})
    await register(store, Meta={"v": "2"})


async def revert(store: Store, version: int, **fields: Any) -> Any:
    request = JobRevertRequest(job_id="web", job_version=version, **fields)
    return await revert_job(
        store,
        "default",
        request,
        surroundings=AROUND,
        now=NOW + 1,
        eval_id=f"e-revert-{version}",
    )


def versions(store: Store) -> list[Job]:
    return store.read(lambda db: jobs.versions(db, "default", "web"))


# ---- reverts ----------------------------------------------------------------------------------------


async def test_revert_creates_a_new_version_with_the_old_definition(store: Store) -> None:
    await three_versions(store)
    done = await revert(store, 0, enforce_prior_version=2)
    newest, *_, oldest = versions(store)
    assert (newest.version, newest.meta, newest.submit_time) == (3, {"v": "0"}, NOW + 1)
    assert (done.index, done.eval_create_index) == (newest.job_modify_index,) * 2
    assert (oldest.version, oldest.meta) == (0, {"v": "0"})


async def test_revert_restores_the_source_of_the_old_version(store: Store) -> None:
    await three_versions(store)
    await revert(store, 0)
    found = store.read(lambda db: submissions.find(db, "default", "web", 3))
    assert found is not None
    assert (found.source, found.version) == ("first", 3)


async def test_revert_copies_neither_stability_nor_tags(store: Store) -> None:
    await three_versions(store)
    request = JobStabilityRequest(job_id="web", job_version=0, stable=True)
    await set_stable(store, "default", request)
    await tag_version(store, "default", "web", "good", TagVersionRequest(version=0), NOW)
    await revert(store, 0)
    newest, *_, oldest = versions(store)
    assert (newest.stable, newest.version_tag) == (False, None)
    assert (oldest.stable, oldest.version_tag) == (True, VersionTag(name="good", tagged_time=NOW))


async def test_a_revert_starts_a_stopped_job(store: Store) -> None:
    await three_versions(store)
    await stop_job(
        store,
        "default",
        "web",
        purge=False,
        eval_priority=0,
        no_shutdown_delay=False,
        now=NOW,
        eval_id="e-stop",
    )
    await revert(store, 2)
    assert [(version.version, version.stop) for version in versions(store)[:2]] == [
        (4, False),
        (3, True),
    ]


async def test_revert_to_the_same_definition_creates_no_version(store: Store) -> None:
    await three_versions(store)
    await revert(store, 0)
    done = await revert(store, 0)
    assert [version.version for version in versions(store)] == [3, 2, 1, 0]
    assert done.eval_id == "e-revert-0"


@pytest.mark.parametrize(
    ("version", "fields", "text"),
    [
        (2, {}, "can't revert to current version"),
        (7, {}, 'job "web" in namespace "default" at version 7 not found'),
        (
            0,
            {"enforce_prior_version": 1},
            "Current job has version 2; enforcing version 1",
        ),
    ],
)
async def test_invalid_revert_is_refused(
    store: Store, version: int, fields: dict[str, int], text: str
) -> None:
    await three_versions(store)
    with pytest.raises(StewardError) as refused:
        await revert(store, version, **fields)
    assert str(refused.value) == text
    assert len(versions(store)) == 3


async def test_revert_to_a_forbidden_definition_is_refused(store: Store) -> None:
    await three_versions(store)
    elsewhere = msgspec.structs.replace(AROUND, node_pools={"gpu"})
    with pytest.raises(Invalid, match="nonexistent node pool"):
        await revert_job(
            store,
            "default",
            JobRevertRequest(job_id="web", job_version=0),
            surroundings=elsewhere,
            now=NOW,
            eval_id="e9",
        )


# ---- responses about versions -----------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
async def test_stability_mark_changes_nothing_else(store: Store, version: int) -> None:
    await three_versions(store)
    before = versions(store)
    request = JobStabilityRequest(job_id="web", job_version=version, stable=True)
    index = await set_stable(store, "default", request)
    after = versions(store)
    changed = [one for one, was in zip(after, before, strict=True) if one != was]
    assert [(job.version, job.stable, job.modify_index) for job in changed] == [
        (version, True, index)
    ]


async def test_unknown_version_cannot_be_marked_stable(store: Store) -> None:
    request = JobStabilityRequest(job_id="web", stable=True)
    with pytest.raises(StewardError, match='job "web" in namespace "default" at version 0 not'):
        await set_stable(store, "default", request)


async def test_tag_belongs_to_one_version_until_its_removal(store: Store) -> None:
    await three_versions(store)
    await tag_version(store, "default", "web", "good", TagVersionRequest(version=1), NOW)
    again = TagVersionRequest(version=1, description="better")
    await tag_version(store, "default", "web", "good", again, NOW)
    with pytest.raises(StewardError, match="already exists on a different version"):
        await tag_version(store, "default", "web", "good", TagVersionRequest(version=2), NOW)
    await untag_version(store, "default", "web", "good")
    await tag_version(store, "default", "web", "good", TagVersionRequest(latest=True), NOW)
    tags = [version.version_tag and version.version_tag.description for version in versions(store)]
    assert tags == ["", None, None]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (TagVersionRequest(version=9), 'job "web" version 9 not found'),
        (
            TagVersionRequest(version=1, latest=True),
            "version must be zero when tagging latest, got: 1",
        ),
    ],
)
async def test_missing_version_gets_no_tag(
    store: Store, request_: TagVersionRequest, text: str
) -> None:
    await three_versions(store)
    with pytest.raises(StewardError) as refused:
        await tag_version(store, "default", "web", "good", request_, NOW)
    assert str(refused.value) == text


async def test_unknown_tag_cannot_be_removed(store: Store) -> None:
    await three_versions(store)
    with pytest.raises(StewardError, match='tag "good" not found on job "web"'):
        await untag_version(store, "default", "web", "good")
