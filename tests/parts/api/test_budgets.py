"""A job beyond a limit of the settings is refused wherever it comes in, before it is completed."""

from typing import Any

import msgspec
import pytest

from daemon.acl.check import KNOWN
from daemon.api import dispatch, history, jobs, plan, scaling
from daemon.config import Config
from daemon.jobs import register
from daemon.jobspec.budgets import OverBudget
from daemon.web.request import Request
from storage.errors import Refused
from storage.queries import jobs as stored_jobs
from storage.records.codec import Document
from storage.store import Store
from tests.parts.api.asking import caller, parts_of, request

TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
GROUPS = [{"Name": name, "Count": 2, "Tasks": [TASK]} for name in ("a", "b")]
JOB: Document = {"ID": "j", "Type": "batch", "TaskGroups": GROUPS}
PARENT: Document = {**JOB, "ParameterizedJob": {}}
NARROW = Config(job_max_groups=1)
TEXT = "TaskGroups: 2 groups, at most 1: split the job, or raise job_max_groups in the daemon's configuration"


def asked(store: Store, config: Config = Config(), body: object = None) -> Request:  # noqa: B008
    made = request(store, KNOWN, caller(), body=body, job_id="j")
    return msgspec.structs.replace(made, parts=parts_of(store, config))


async def test_a_registration_is_refused_before_the_job_is_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def costly(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(register, "canonicalize", costly)
    for handler in (jobs.register, jobs.update, plan.plan):
        with pytest.raises(OverBudget) as raised:
            await handler(asked(store, NARROW, {"Job": JOB}))
        assert raised.value.problems == (TEXT,)


async def test_validate_lists_what_is_too_large(store: Store) -> None:
    reply = await jobs.validate(asked(store, NARROW, {"Job": JOB}))
    found: Any = reply.body
    assert found.validation_errors == [TEXT]
    assert found.error == f"1 error occurred:\n\t* {TEXT}\n\n"


async def test_what_is_stored_stays_and_does_not_come_in_anew(store: Store) -> None:
    await jobs.register(asked(store, body={"Job": PARENT}))
    await jobs.register(asked(store, body={"Job": {**PARENT, "Priority": 60}}))
    with pytest.raises(OverBudget, match="job_max_groups"):
        await dispatch.dispatch(asked(store, NARROW, {}))
    with pytest.raises(OverBudget, match="job_max_groups"):
        await history.revert(asked(store, NARROW, {"JobID": "j", "JobVersion": 0}))
    found = store.read(lambda db: stored_jobs.current(db, "default", "j"))
    assert found is not None
    assert found.version == 1
    await dispatch.dispatch(asked(store, body={}))


async def test_the_counts_of_a_job_have_their_setting(store: Store) -> None:
    few = Config(job_max_count=3)
    reply = await jobs.validate(asked(store, few, {"Job": JOB}))
    found: Any = reply.body
    (text,) = found.validation_errors
    assert text == "total count was greater than configured job_max_count: 4 > 3"
    await jobs.register(asked(store, body={"Job": PARENT}))
    scale = {"Target": {"Group": "a"}, "Count": 2, "Message": "m"}
    with pytest.raises(Refused, match="job_max_count: 4 > 3"):
        await scaling.scale(asked(store, few, scale))
    with pytest.raises(Refused, match="job_max_count: 4 > 3"):
        await dispatch.dispatch(asked(store, few, {}))
