"""Validating, planning and registering a large job leave the event loop to others."""

import threading
from typing import Any

import pytest

from daemon.acl.check import KNOWN
from daemon.api import jobs, plan
from daemon.jobs import register
from storage.records.codec import Document
from storage.store import Store
from tests.parts.api.requests import caller, request

TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
JOB: Document = {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [TASK]}]}
LARGE: Document = {**JOB, "Meta": {"a": "x" * 5000}}


@pytest.mark.parametrize(
    ("handler", "job", "in_thread"),
    [
        (jobs.validate, JOB, True),
        (plan.plan, JOB, True),
        (jobs.register, JOB, False),
        (jobs.register, LARGE, True),
    ],
)
async def test_job_defaults_are_set_in_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch, handler: Any, job: Document, *, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []
    canonicalize = register.canonicalize

    def noting(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return canonicalize(*arguments, **named)

    monkeypatch.setattr(register, "canonicalize", noting)
    await handler(request(store, KNOWN, caller(), body={"Job": job}, job_id="j"))
    assert [thread is not threading.current_thread() for thread in threads] == [in_thread]
