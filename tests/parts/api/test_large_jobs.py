"""Small requests about a job of several megabytes do not decode the job on the loop."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE
from daemon.api.bulk_dispatch import dispatch_bulk
from daemon.api.cluster import client, kept_files, log_sources, usage_history
from daemon.api.cluster.job_logs import stream_job_logs
from daemon.api.exec_sessions import execute, run_action
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import job_status, jobs
from storage.records.job import Parameterized
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.parts.api.test_job_log_views import MOST, TRIES, JobLogs, searched_seldom
from tests.samples import group, job, task
from tests.step_timing import Longest, slowness

__all__ = ["searched_seldom"]  # a fixture

LARGE = task(env={f"NAME_{number}": "x" * 40 for number in range(40_000)})  # 2.4 MB as JSON
NOBODY: Any = None  # stands for the WebSocket, which these requests do not use

Ask = Callable[[Request], Awaitable[object]]


async def _of_parent(asked: Request) -> HandlerReply:
    return await dispatch_bulk(msgspec.structs.replace(asked, body=b"{}\n"))


def _register_parent(tx: Transaction) -> None:
    one = job("batch", group("web", LARGE), type="batch", parameterized_job=Parameterized())
    jobs.append_version(tx, one)
    job_status.refresh_summary(tx, one.namespace, one.id)


@pytest.mark.usefixtures("searched_seldom")
@pytest.mark.parametrize(
    ("ask", "job_id", "query", "error"),
    [
        (lambda asked: log_sources.find_source(asked, asked["alloc_id"]), "web", "", ()),
        (client.pause, "web", "", Refused),
        (kept_files.read, "web", "path=a", NotFound),
        (usage_history.of_allocation, "web", "", AttributeError),  # raised after the lookup
        (lambda asked: execute(asked, NOBODY), "web", "command=[]", Malformed),
        (
            lambda asked: run_action(asked, NOBODY),
            "web",
            "alloc_id=00000001-0000-4000-8000-0000000000aa&task=main&action=x",
            NotFound,
        ),
        (stream_job_logs, "web", "", ()),
        (_of_parent, "batch", "", ()),
    ],
    ids=["logs", "client", "kept", "usage", "exec", "action", "job-logs", "bulk-dispatch"],
)
async def test_a_large_job_is_not_decoded_on_the_loop(
    store: Store, tmp_path: Path, ask: Ask, job_id: str, query: str, error: Any
) -> None:
    logs = JobLogs(store, tmp_path / "data")
    await logs.register(job("web", group("web", LARGE)))
    alloc_id = await logs.add()
    await store.write(_register_parent)
    parameters = {"job_id": job_id, "alloc_id": alloc_id}
    body = {} if ask is client.pause else None
    asked = request(store, ANYONE, caller(), query=query, body=body, **parameters)
    asked = msgspec.structs.replace(asked, parts=logs.parts)

    async def longest() -> int:
        measure = Longest()
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            if error:
                with pytest.raises(error):
                    await ask(asked)
            else:
                await ask(asked)
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        return measure.longest

    found: list[int] = []
    while not found or (found[-1] > MOST and len(found) < TRIES):
        found.append(await longest())
    assert min(found) <= MOST or min(found) <= MOST * slowness(), found
