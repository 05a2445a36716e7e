"""Masks of sensitive job variables in responses, and in the audit entry of an exec session."""

from collections.abc import AsyncGenerator, Collection
from typing import Any

import msgspec
import pytest

from daemon.acl.check import ANYONE, Caller, RequiredCapability, Requirement
from daemon.text.masking import Matcher
from daemon.variables.task_secrets import matcher_of
from daemon.web import exec_masks, job_masks
from daemon.web.reply import HandlerReply, text
from daemon.web.request import ReadRoute, Request, Route, StreamRoute, WriteRoute
from storage.queries import allocations, jobs
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.samples import NOW, job
from tests.unit.runner.placements import placed

VALUE = "a long secret"
HANDLER: Any = None
READER = caller('namespace "default" { policy = "read" }')
WRITER = caller('namespace "default" { policy = "write" }')
READ = RequiredCapability(Requirement.NAMESPACE, ("read-job",))
LOGS = RequiredCapability(Requirement.NAMESPACE, ("read-logs",))
VARIABLE = RequiredCapability(Requirement.VARIABLE)
JOBS = ReadRoute("/v1/jobs", HANDLER, READ)


class Source:
    """The sensitive values of some jobs."""

    def __init__(self, *keys: tuple[str, str]) -> None:
        self.known = {key: matcher_of([VALUE]) for key in keys}

    async def jobs(self) -> Collection[tuple[str, str]]:
        return self.known.keys()

    async def matcher(self, key: tuple[str, str]) -> Matcher | None:
        return self.known.get(key)


class Output:
    """The secrets that the tasks of an allocation received."""

    async def matcher(self, alloc_id: str) -> Matcher | None:
        return matcher_of(["of the task"]) if alloc_id == "alloc" else None


def asked(
    store: Store, source: Source | None, who: Caller = READER, query: str = "", **parameters: str
) -> Request:
    made = request(store, READ, who, query=query, **parameters)
    parts: Any = msgspec.structs.replace(made.parts, job_masks=source, output=Output())
    return msgspec.structs.replace(made, parts=parts)


def document(job_id: str = "a", namespace: str = "default") -> dict[str, str]:
    return {"Namespace": namespace, "JobID": job_id, "Text": VALUE}


async def shown(
    store: Store, source: Source | None, reply: HandlerReply, route: Route = JOBS, **fields: Any
) -> str:
    """Return the body of a response with masks."""
    masked = await job_masks.masked(route, asked(store, source, **fields), reply)
    if masked.stream is not None:
        return b"".join([chunk async for chunk in masked.stream]).decode()
    body = masked.body if isinstance(masked.body, bytes) else msgspec.json.encode(masked.body)
    return body.decode()


A = ("default", "a")


@pytest.mark.parametrize(
    ("keys", "body", "is_masked"),
    [
        ((A,), document(), True),
        ((A,), document("a/periodic-1"), True),  # a child uses the values of its parent
        ((A,), document("b"), False),
        ((A,), document(namespace="other"), False),
        ((), document(), False),
    ],
)
async def test_values_are_masked_in_objects_of_their_job(
    store: Store, keys: tuple[tuple[str, str], ...], body: object, is_masked: bool
) -> None:
    found = await shown(store, Source(*keys), HandlerReply(body=body))
    assert (VALUE not in found) is is_masked


async def test_object_of_a_job_without_values_is_unchanged(store: Store) -> None:
    reply = HandlerReply(body=[document("a"), document("c")])
    first, second = msgspec.json.decode(await shown(store, Source(A, ("default", "b")), reply))
    assert (VALUE in first["Text"], VALUE in second["Text"]) == (False, True)


@pytest.mark.parametrize("size", [10, 20_000])
async def test_short_and_long_bodies_are_masked(store: Store, size: int) -> None:
    body = {**document(), "Fill": "x" * size}
    for reply in (HandlerReply(body=body), HandlerReply(body=msgspec.json.encode(body))):
        assert VALUE not in await shown(store, Source(A), reply)


@pytest.mark.parametrize(
    ("reply", "is_masked"),
    [
        (text(f"value: {VALUE}"), True),
        (HandlerReply(body=VALUE.encode(), content_type="application/octet-stream"), False),
    ],
)
async def test_text_is_masked_on_routes_of_the_job_but_files_are_not(
    store: Store, reply: HandlerReply, is_masked: bool
) -> None:
    for parameters in ({"job_id": "a"}, {"job_id": "a/dispatch-1-2"}):
        found = await shown(store, Source(A), reply, **parameters)
        assert (VALUE not in found) is is_masked
    assert VALUE in await shown(store, Source(A), reply, job_id="b")
    assert VALUE in await shown(store, Source(A), reply)


async def test_reply_without_a_body_has_nothing_to_mask(store: Store) -> None:
    reply = HandlerReply(status=204)
    assert await job_masks.masked(JOBS, asked(store, Source(A)), reply) is reply


async def test_unmasked_body_stays_the_same_without_any_values(store: Store) -> None:
    reply = HandlerReply(body=document())
    assert (await job_masks.masked(JOBS, asked(store, Source()), reply)).body is reply.body
    assert await job_masks.masked(JOBS, asked(store, None), reply) is reply


async def test_each_chunk_of_a_stream_is_masked(store: Store) -> None:
    is_closed = False

    async def chunks() -> AsyncGenerator[bytes, None]:
        nonlocal is_closed
        try:
            for job_id in "ab":
                yield msgspec.json.encode(document(job_id))
        finally:
            is_closed = True

    found = await shown(store, Source(A), HandlerReply(stream=chunks()))
    first, second = found.split("}{")
    assert (VALUE in first, VALUE in second, is_closed) == (False, True, True)


@pytest.mark.parametrize(
    ("route", "who", "is_masked"),
    [
        (JOBS, READER, True),
        (JOBS, WRITER, True),
        (ReadRoute("/v1/job", HANDLER, READ, is_definition=True), READER, True),
        (ReadRoute("/v1/job", HANDLER, READ, is_definition=True), WRITER, False),
        (ReadRoute("/v1/logs", HANDLER, LOGS), READER, False),
        (ReadRoute("/v1/var", HANDLER, VARIABLE), READER, False),
        (WriteRoute("POST", "/v1/job", HANDLER, READ), READER, False),
        (WriteRoute("POST", "/v1/plan", HANDLER, READ, shows_jobs=True), READER, True),
        (StreamRoute("/v1/events", HANDLER, ANYONE), READER, True),
    ],
)
async def test_route_and_caller_decide_about_masks(
    store: Store, route: Route, who: Caller, is_masked: bool
) -> None:
    found = await shown(store, Source(A), HandlerReply(body=document()), route, who=who)
    assert (VALUE not in found) is is_masked
    view = await job_masks.view(route, asked(store, Source(A), who))
    assert (view is not None) is is_masked


@pytest.mark.parametrize(
    ("query", "method", "is_masked"),
    [
        ("", "GET", True),
        ("namespace=other", "GET", False),
        ("namespace=*", "GET", True),
        ("namespace=other", "POST", True),  # the body may name another namespace
    ],
)
async def test_view_has_the_jobs_of_the_namespace(
    store: Store, query: str, method: str, is_masked: bool
) -> None:
    sent = msgspec.structs.replace(asked(store, Source(A), query=query), method=method)
    view = await job_masks.view(JOBS, sent)
    assert (view is not None) is is_masked
    if view is not None:
        assert VALUE not in str(view.document(document()))
        assert VALUE in str(view.document(document("b")))


async def test_view_of_a_store_without_values_is_none(store: Store) -> None:
    assert await job_masks.view(JOBS, asked(store, None)) is None
    assert await job_masks.view(JOBS, asked(store, Source())) is None


async def store_allocation(store: Store, job_id: str) -> None:
    def write(tx: Transaction) -> None:
        jobs.append_version(tx, job(job_id))
        allocations.add(tx, placed(job(job_id), "node", "alloc"), NOW)

    await store.write(write)


async def test_allocation_in_the_path_names_its_job(store: Store) -> None:
    await store_allocation(store, "a")
    reply = text(f"value: {VALUE}")
    assert VALUE not in await shown(store, Source(A), reply, alloc_id="alloc")
    assert VALUE in await shown(store, Source(A), reply, alloc_id="other")


# --- exec sessions ---


def command(*words: str) -> str:
    return "task=main&command=" + msgspec.json.encode(words).decode().replace(" ", "+")


async def masked_query(store: Store, source: Source | None, query: str, alloc_id: str) -> str:
    return await exec_masks.masked_query(asked(store, source, query=query, alloc_id=alloc_id))


@pytest.mark.parametrize("job_id", ["a", "a/dispatch-1-2", "b"])
async def test_command_shows_no_secret_of_its_task_or_job(store: Store, job_id: str) -> None:
    await store_allocation(store, job_id)
    query = command("echo", VALUE, "of the task", "plain")
    found = (await masked_query(store, Source(A), query, "alloc")).replace("+", " ")
    assert "of the task" not in found
    assert "plain" in found
    assert found.startswith("task=main&command=")
    assert (VALUE not in found) is (job_id != "b")
    other = (await masked_query(store, Source(A), query, "other")).replace("+", " ")
    assert VALUE in other
    assert "of the task" in other


async def test_command_of_a_store_without_job_values_is_masked(store: Store) -> None:
    await store_allocation(store, "a")
    found = await masked_query(store, None, command(VALUE, "of the task"), "alloc")
    assert VALUE.replace(" ", "+") in found
    assert "of+the+task" not in found


@pytest.mark.parametrize("text", ["x", "{}", f'["{"x" * 16384}"]'])
async def test_invalid_or_long_command_is_not_shown(store: Store, text: str) -> None:
    await store_allocation(store, "a")
    assert await masked_query(store, None, f"command={text}&tty=true", "alloc") == (
        "command=&tty=true"
    )
