"""The API of freezes: capabilities, scopes and lists."""

from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from daemon.api import freezes as api
from daemon.api.job_versions import revert
from daemon.api.jobs import register
from daemon.api.routes import FREEZE, LIST, REVERT, SUBMIT
from daemon.jobs import freezes as rules
from daemon.jobs.freezes import FreezeRequest
from storage.errors import Denied, NotFound
from storage.queries import concurrency, jobs
from storage.records.freeze import Freeze
from storage.store import Store
from tests.parts.api.requests import caller, request
from tests.samples import NOW

WRITER = 'namespace "default" { capabilities = ["list-jobs", "freeze-jobs"] }'
OPERATOR = f'{WRITER} operator {{ policy = "write" }}'
READER = 'namespace "default" { policy = "read" }'


async def make(store: Store, policy: str = WRITER, **body: str) -> str:
    content: dict[str, Any] = {"Reason": "release", **body}
    reply = await api.make(request(store, FREEZE, caller(policy), body=content))
    assert isinstance(reply.body, api.FreezeResponse)
    return reply.body.id


def listed(store: Store, policy: str = WRITER, **query: str) -> list[Freeze]:
    asked = request(store, LIST, caller(policy), query=urlencode(query))
    reply = store.read(lambda db: api.index(asked, db))
    assert isinstance(reply.body, bytes)
    return msgspec.json.decode(reply.body, type=list[Freeze])


async def test_freeze_of_the_whole_daemon_needs_an_operator(store: Store) -> None:
    with pytest.raises(Denied):
        await make(store, Namespace="*")
    everything = await make(store, OPERATOR, Namespace="*")
    with pytest.raises(Denied):
        await api.thaw(request(store, FREEZE, caller(WRITER), freeze_id=everything))
    assert [freeze.id for freeze in listed(store, READER)] == [everything]


async def test_a_freeze_needs_its_capability_in_its_namespace(store: Store) -> None:
    for policy, namespace in ((READER, ""), (WRITER, "other")):
        with pytest.raises(Denied):
            await make(store, policy, Namespace=namespace)
    assert listed(store, READER) == []


async def test_freezes_of_hidden_namespaces_are_not_listed(store: Store) -> None:
    await make(store)
    stranger = 'namespace "other" { policy = "read" }'
    assert listed(store, stranger, namespace="*") == []


async def test_an_ended_freeze_is_listed_but_not_active(store: Store) -> None:
    ended = await make(store)
    body = FreezeRequest(reason="later", begin="2100-01-01T00:00:00Z")
    await rules.make(store, rules.freeze_of(body, "default", "later", NOW))
    await api.thaw(request(store, FREEZE, caller(WRITER), freeze_id=ended))
    again = await api.thaw(request(store, FREEZE, caller(WRITER), freeze_id=ended))
    assert again.status == 409
    assert [freeze.id for freeze in listed(store)] == ["later", ended]
    assert listed(store, active="true") == []
    with pytest.raises(NotFound):
        await api.thaw(request(store, FREEZE, caller(WRITER), freeze_id="none"))


async def test_only_callers_with_the_capability_change_frozen_jobs(store: Store) -> None:
    frozen = await make(store, Strength="changes")
    submit = 'namespace "default" { capabilities = ["submit-job"] }'
    document = {"Job": {"ID": "etl", "Name": "etl", "Type": "batch", "TaskGroups": [_GROUP]}}
    with pytest.raises(Denied, match=f"because of freeze {frozen} .release."):
        await register(request(store, SUBMIT, caller(submit), body=document))
    override = submit.replace('"submit-job"', '"submit-job", "override-freeze"')
    await register(request(store, SUBMIT, caller(override), body=document))
    assert store.read(lambda db: jobs.current(db, "default", "etl")) is not None


async def test_a_job_cannot_leave_a_frozen_queue(store: Store) -> None:
    override = 'namespace "default" { capabilities = ["submit-job", "override-freeze"] }'
    queue = {"steward_run_concurrency": "db"}
    document = {"ID": "etl", "Name": "etl", "Type": "batch", "TaskGroups": [_GROUP]}
    for meta in ({}, queue):
        body = {"Job": {**document, "Meta": meta}}
        await register(request(store, SUBMIT, caller(override), body=body))
    frozen = await make(store, Strength="changes", Queue="db")
    submit = caller('namespace "default" { capabilities = ["submit-job", "read-job"] }')
    for meta in ({}, {"steward_run_concurrency": "other"}, queue):
        body = {"Job": {**document, "Meta": meta, "Priority": 60}}
        with pytest.raises(Denied, match=f"because of freeze {frozen} "):
            await register(request(store, SUBMIT, submit, body=body))
    outside = {"Job": {**document, "ID": "other"}}
    await register(request(store, SUBMIT, submit, body=outside))


async def test_a_revert_neither_leaves_nor_enters_a_frozen_queue(store: Store) -> None:
    override = 'namespace "default" { capabilities = ["submit-job", "override-freeze"] }'
    document = {"ID": "etl", "Name": "etl", "Type": "batch", "TaskGroups": [_GROUP]}
    for queue in ("db", "disk"):
        body = {"Job": {**document, "Meta": {"steward_run_concurrency": queue}}}
        await register(request(store, SUBMIT, caller(override), body=body))
    frozen = await make(store, Strength="changes", Queue="db")
    submit = caller('namespace "default" { capabilities = ["submit-job", "read-job"] }')
    with pytest.raises(Denied, match=f"because of freeze {frozen} "):
        await revert(
            request(store, REVERT, submit, body={"JobID": "etl", "JobVersion": 0}, job_id="etl")
        )


_TASK = {"Name": "main", "Driver": "exec", "Config": {"command": "/bin/true"}}
_GROUP = {"Name": "a", "Tasks": [_TASK]}


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_freeze_of_an_unknown_queue_has_a_warning(store: Store, is_known: bool) -> None:
    if is_known:
        await store.write(lambda tx: concurrency.set_limit(tx, ("default", "db"), 2, ""))
    body = {"Reason": "release", "Queue": "db"}
    reply = await api.make(request(store, FREEZE, caller(WRITER), body=body))
    assert isinstance(reply.body, api.FreezeResponse)
    warning = 'no job of namespace "default" names the queue "db"'
    assert reply.body.warnings == ("" if is_known else warning)
