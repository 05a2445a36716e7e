"""A large body is read in a thread, on every route."""

import ast
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trio

import daemon.api
from daemon.acl.check import KNOWN, on_variable
from daemon.api import dispatch
from daemon.api import jobs as api_jobs
from daemon.api.cluster import variables
from daemon.jobs.register import JobRegisterRequest, JobValidateRequest
from daemon.web import request as requests
from daemon.web.request import SHORT, Request
from storage.errors import Invalid, Malformed
from storage.queries import job_status, jobs
from storage.records.codec import Document
from storage.records.job import Parameterized
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.samples import job as sample_job
from tests.step_timing import Longest, slowness

MOST = 5_000_000  # nanoseconds
TRIES = 5
FOLDER = Path(daemon.api.__file__).parent
MODULES = sorted(FOLDER.glob("**/*.py"))


@pytest.mark.parametrize(("size", "in_thread"), [(100, False), (SHORT + 1, True)])
async def test_a_thread_reads_a_large_body(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int, *, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []
    decode = requests.decode

    def noting(*arguments: object) -> object:
        threads.append(threading.current_thread())
        return decode(*arguments)

    monkeypatch.setattr(requests, "decode", noting)
    job: Document = {"ID": "x" * size, "Nonsense": 1}
    asked = request(store, KNOWN, caller(), body={"Job": job})
    found = await asked.decoded(JobValidateRequest)
    assert found.job == {"ID": "x" * size}
    assert asked.remarks() == ['unknown field "Job.Nonsense" is ignored']
    assert (threads[0] is not threading.current_thread()) == in_thread


def _decodes_on_the_loop(module: Path) -> list[str]:
    return [
        f"{module.name}: {function.name}"
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "decode"
        if isinstance(node.value, ast.Name) and node.value.id == "request"
    ]


def test_no_handler_reads_its_body_on_the_loop() -> None:
    assert [item for module in MODULES for item in _decodes_on_the_loop(module)] == []


def test_rule_detects_a_handler_that_reads_its_body_on_the_loop(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("async def f(request):\n    request.decode(int)\n")
    assert _decodes_on_the_loop(module) == ["module.py: f"]


async def test_requests_of_one_client_are_grouped_by_token_or_address(store: Store) -> None:
    asked = request(store, KNOWN, caller())
    assert asked.client == "someone"
    nobody = msgspec.structs.replace(asked.caller.token, accessor="")
    unknown = msgspec.structs.replace(asked.caller, token=nobody)
    assert msgspec.structs.replace(asked, caller=unknown, address="::1").client == "::1"


# --- work on the event loop after a body was read


@pytest.fixture
async def parent(store: Store) -> str:
    block = Parameterized(payload="optional")
    one = sample_job("parent", type="batch", parameterized_job=block)

    def add(tx: Transaction) -> None:
        jobs.append_version(tx, one)
        job_status.refresh_summary(tx, one.namespace, one.id)

    await store.write(add)
    return one.id


def _asked(store: Store, body: bytes, **parameters: str) -> Request:
    asked = request(store, on_variable("write"), caller(), **parameters)
    return msgspec.structs.replace(asked, body=body)


async def _longest_step(work: Callable[[], Awaitable[object]]) -> int:
    """Return the CPU time of the longest step of `work` on the event loop, in nanoseconds."""
    measure = Longest()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.add_instrument(measure)
    try:
        await trio.lowlevel.checkpoint()
        await work()
    finally:
        await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(measure)
    return measure.longest


@pytest.mark.parametrize("kind", ["dispatch", "payload", "variable"])
async def test_body_beyond_a_limit_does_not_block_the_event_loop(
    store: Store, parent: str, kind: str
) -> None:
    payload = bytes(12_000_000)

    async def work() -> None:
        if kind == "payload":
            with pytest.raises(Invalid, match="Payload exceeds maximum size; 12000000 > 16384"):
                await dispatch.dispatch_payload(_asked(store, payload, job_id=parent))
            return
        if kind == "dispatch":
            with pytest.raises(Invalid, match="Payload exceeds maximum size; 12000000 > 16384"):
                await dispatch.dispatch(_asked(store, encoded, job_id=parent))
            return
        found = await variables.write(_asked(store, items, path="a/b"))
        assert b"variables are limited to 64KiB" in found.body

    encoded = msgspec.json.encode({"Payload": payload})
    items = msgspec.json.encode({"Items": {f"key{number}": "é" * 150 for number in range(40_000)}})
    taken = [await _longest_step(work) for _ in range(TRIES)]
    assert min(taken) <= MOST or min(taken) <= MOST * slowness(), taken


@pytest.mark.parametrize("size", [SHORT + 1, 40_000_000])
async def test_search_for_masks_does_not_block_the_event_loop(store: Store, size: int) -> None:
    job: Document = {"ID": "x", "Meta": {"a": "x" * size}}
    body = JobRegisterRequest(job=job)
    asked = _asked(store, msgspec.json.encode({"Job": job}))
    taken = [await _longest_step(lambda: api_jobs._check_masks(asked, body)) for _ in range(TRIES)]
    assert min(taken) <= MOST or min(taken) <= MOST * slowness(), taken
    job["Meta"]["a"] += "‹masked›"
    asked = _asked(store, msgspec.json.encode({"Job": job}))
    with pytest.raises(Malformed, match=r"^Job\.Meta\.a has a mask"):
        await api_jobs._check_masks(asked, body)


async def test_payload_in_the_body_becomes_the_payload_of_the_child(
    store: Store, parent: str
) -> None:
    found = await dispatch.dispatch_payload(_asked(store, b"\xff\x00", job_id=parent))
    child = msgspec.to_builtins(found.body)["DispatchedJobID"]
    stored = store.read(lambda db: jobs.current(db, "default", child))
    assert stored is not None
    assert stored.payload == "/wA="
