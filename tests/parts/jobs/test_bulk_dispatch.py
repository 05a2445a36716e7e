"""Bulk dispatch: each line follows the rules of a single dispatch."""

import base64
from collections.abc import Sequence
from itertools import count

import msgspec
import pytest

from daemon.jobs.bulk_dispatch import (
    MAX_LINE,
    check_parent,
    dispatch_lines,
    read_lines,
    split_lines,
)
from daemon.jobs.dispatch import DispatchRequestData, dispatch_job
from daemon.jobspec.budgets import DEFAULTS, Budgets
from storage.errors import Invalid, Malformed, NotFound, Refused, TooLarge
from storage.queries import job_status, jobs
from storage.records.bulk_dispatch import MAX_CHILDREN, BulkDispatchAnswer
from storage.records.job import Job, Parameterized
from storage.store import Store
from storage.writer import Transaction
from tests.samples import NOW, job

PAYLOAD = base64.b64encode(b"p").decode()


class Parent:
    """A parameterized job, and its bulk dispatches."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ids = (f"eval-{number}" for number in count(1))
        self.suffixes = count()

    async def register(self, block: Parameterized | None = None, **meta: str) -> Job:
        keys = {f"steward_children_{name}": text for name, text in meta.items()}
        block = block or Parameterized(payload="optional", meta_optional=["n"])
        made = job("web", type="batch", parameterized_job=block, meta=keys)

        def work(tx: Transaction) -> None:
            jobs.append_version(tx, made)
            job_status.refresh_summary(tx, made.namespace, made.id)

        await self.store.write(work)
        return made

    async def dispatch(
        self, *lines: object, token: str = "", budgets: Budgets = DEFAULTS
    ) -> list[BulkDispatchAnswer]:
        texts = [line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines]
        return await dispatch_lines(
            self.store,
            "default",
            "web",
            read_lines(split_lines(b"\n".join(texts)), "web", token),
            budgets=budgets,
            now=NOW,
            ids=self.ids,
            suffix=f"{next(self.suffixes):08}",
        )

    def child(self, child_id: str) -> Job:
        found = self.store.read(lambda db: jobs.current(db, "default", child_id))
        assert found is not None
        return found


@pytest.fixture
def parent(store: Store) -> Parent:
    return Parent(store)


def errors(bulk_dispatch_answers: Sequence[BulkDispatchAnswer]) -> list[tuple[int, str, str]]:
    return [
        (answer.line, answer.field, answer.error)
        for answer in bulk_dispatch_answers
        if answer.error
    ]


# --- the lines ---


def test_empty_lines_are_counted_and_skipped() -> None:
    lines = split_lines(b'\n{}\r\n \t\n{"a": 1}', first=5)
    assert [(line.number, line.text) for line in lines] == [(6, b"{}"), (8, b'{"a": 1}')]


@pytest.mark.parametrize("body", [b"", b"\n \n\r\n"])
def test_a_body_without_lines_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match="one JSON object per line"):
        split_lines(body)


@pytest.mark.parametrize("body", [b"{}\n" * (MAX_CHILDREN + 1), b"\n" * 10 * MAX_CHILDREN])
def test_too_many_lines_are_refused(body: bytes) -> None:
    with pytest.raises(TooLarge, match="10000 lines"):
        split_lines(body)


def test_maximum_number_of_lines_is_accepted() -> None:
    assert len(split_lines(b"{}\n" * MAX_CHILDREN)) == MAX_CHILDREN


@pytest.mark.parametrize(
    ("line", "field", "error"),
    [
        (b"x", "", "invalid character 'x' looking for beginning of value"),
        (b"[]", "", "cannot unmarshal array"),
        (b'{"Meta": {"a": 1}}', "Meta", "cannot unmarshal number"),
        (b'{"Priority": "1"}', "Priority", "cannot unmarshal string"),
        (b'{"Payload": "%"}', "Payload", "illegal base64 data at input byte 0"),
        (b'{"JobID": "other"}', "JobID", "Job ID does not match"),
        (b'{"Payload": "%s"}' % (b"A" * MAX_LINE), "", f"the maximum is {MAX_LINE}"),
    ],
)
def test_unreadable_line_has_a_reason(line: bytes, field: str, error: str) -> None:
    bad, good = read_lines(split_lines(line + b"\n{}"), "web")
    assert (bad.request, bad.number, bad.field) == (None, 1, field)
    assert error in bad.error
    assert good.request == DispatchRequestData(payload=b"", meta={})


@pytest.mark.parametrize("name", ["IdempotencyToken", "idempotency_token", "idempotencytoken"])
def test_each_spelling_of_the_token_is_accepted(name: str) -> None:
    (line,) = read_lines(split_lines(msgspec.json.encode({name: "t"})), "web", "other")
    assert line.request is not None
    assert (line.request.token, line.warnings) == ("t", ())


def test_an_unknown_field_is_a_warning() -> None:
    (line,) = read_lines(split_lines(b'{"Paylod": "QQ=="}'), "web")
    assert line.warnings == ('unknown field "Paylod" is ignored',)


@pytest.mark.parametrize(
    ("found", "error", "text"),
    [
        (None, NotFound, 'job "web" not found'),
        (job("web"), Malformed, "is not a parameterized job"),
        (
            job("web", parameterized_job=Parameterized(), dispatched=True),
            Malformed,
            "is not a parameterized job",
        ),
        (job("web", parameterized_job=Parameterized(), stop=True), Malformed, "is stopped"),
    ],
)
def test_job_that_cannot_be_dispatched_is_refused(
    found: Job | None, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        check_parent(found, "web")
    check_parent(job("web", parameterized_job=Parameterized(meta_required=["n"])), "web")


# --- the children ---


async def test_child_is_equal_to_that_of_a_single_dispatch(parent: Parent) -> None:
    await parent.register()
    line = {"Payload": PAYLOAD, "Meta": {"n": "1"}, "Priority": 70, "IdPrefixTemplate": "x"}
    (answer,) = await parent.dispatch({**line, "IdempotencyToken": "t"})
    single = await dispatch_job(
        parent.store,
        "default",
        "web",
        DispatchRequestData(
            payload=b"p", meta={"n": "1"}, priority=70, id_prefix="x", token="other"
        ),
        now=NOW,
        ids=parent.ids,
        suffix="single",
    )
    one, other = (
        msgspec.to_builtins(parent.child(child_id))
        for child_id in (answer.dispatched_job_id, single.job_id)
    )
    differ = {name for name in one if one[name] != other[name]}
    assert differ == {
        *("ID", "Name", "DispatchIdempotencyToken"),
        *("CreateIndex", "ModifyIndex", "JobModifyIndex"),
    }
    assert answer.dispatched_job_id == f"web/dispatch-x-{NOW // 10**9}-00000000-00001"
    assert (answer.eval_id, answer.index) == ("eval-1", answer.job_create_index)


async def test_failed_line_does_not_affect_others(parent: Parent) -> None:
    await parent.register(Parameterized(payload="required", meta_required=["n"]))
    good = {"Payload": PAYLOAD, "Meta": {"n": "1"}}
    answers = await parent.dispatch(
        good,
        {"Meta": {"n": "1"}},
        {"Payload": PAYLOAD},
        {"Payload": PAYLOAD, "Meta": {"n": "1", "x": ""}},
        {**good, "Priority": 101},
        {**good, "Payload": base64.b64encode(bytes(16385)).decode()},
        b"{",
        good,
    )
    assert [bool(answer.dispatched_job_id) for answer in answers] == [True, *[False] * 6, True]
    assert errors(answers) == [
        (2, "Payload", "Payload is not provided but required by parameterized job"),
        (3, "Meta", "Dispatch did not provide required meta keys: [n]"),
        (4, "Meta", "Dispatch request included unpermitted metadata keys: [x]"),
        (5, "Priority", "dispatch job priority must be between [1, 100]"),
        (6, "Payload", "Payload exceeds maximum size; 16385 > 16384"),
        (7, "", "unexpected EOF"),
    ]


async def test_token_creates_one_child_for_any_number_of_requests(parent: Parent) -> None:
    await parent.register()
    line = {"IdempotencyToken": "t"}
    first, twin, other = await parent.dispatch(line, line, {})
    assert (first.existed, twin.existed, other.existed) == (False, True, False)
    assert twin.dispatched_job_id == first.dispatched_job_id != other.dispatched_job_id
    (again,) = await parent.dispatch(line)
    assert (again.existed, again.dispatched_job_id) == (True, first.dispatched_job_id)


async def test_token_of_the_request_makes_every_line_idempotent(parent: Parent) -> None:
    await parent.register()
    lines = ({}, {"IdempotencyToken": "own"})
    before = await parent.dispatch(*lines, token="all")
    after = await parent.dispatch(*lines, {}, token="all")
    assert [item.dispatched_job_id for item in after[:2]] == [
        item.dispatched_job_id for item in before
    ]
    assert [item.existed for item in after] == [True, True, False]
    child = parent.child(after[2].dispatched_job_id)
    assert child.dispatch_idempotency_token.split("/") == ["all", "3"]


async def test_children_beyond_the_limit_are_queued(parent: Parent) -> None:
    await parent.register(at_once="2")
    answers = await parent.dispatch({}, {}, {}, {})
    assert [bool(answer.eval_id) for answer in answers] == [True, True, False, False]
    assert all(answer.dispatched_job_id for answer in answers)


async def test_children_beyond_the_limit_are_dropped(parent: Parent) -> None:
    await parent.register(at_once="1", beyond="drop")
    answers = await parent.dispatch({}, {})
    assert [bool(answer.dispatched_job_id) for answer in answers] == [True, False]
    assert "drops further dispatches" in answers[1].error


async def test_a_new_child_replaces_the_oldest(parent: Parent) -> None:
    await parent.register(at_once="1", beyond="replace")
    first, second = await parent.dispatch({}, {})
    assert parent.child(first.dispatched_job_id).stop
    assert not parent.child(second.dispatched_job_id).stop


async def test_a_child_beyond_a_limit_of_jobs_is_refused(parent: Parent) -> None:
    await parent.register()
    large = {"Payload": base64.b64encode(bytes(9000)).decode()}
    budgets = msgspec.structs.replace(DEFAULTS, job_max_kb=8)
    small, refused = await parent.dispatch({}, large, budgets=budgets)
    assert small.dispatched_job_id
    assert "the limit is 8 KB" in refused.error


async def test_job_deleted_during_the_batch_stops_the_batch(parent: Parent) -> None:
    with pytest.raises(Refused, match="parameterized job not found"):
        await parent.dispatch({})


async def test_the_parent_counts_its_children(parent: Parent) -> None:
    await parent.register(at_once="2")
    await parent.dispatch({}, {}, {})
    row = parent.store.read(lambda db: job_status.load_summary(db, "default", "web"))
    assert row is not None
    assert (row["children_pending"], row["children_running"], row["children_dead"]) == (3, 0, 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"IdPrefixTemplate": "a\0"}, "IdPrefixTemplate contains a null character"),
        (
            {"IdPrefixTemplate": "x" * 1025},
            "IdPrefixTemplate has 1025 characters; the maximum is 1024",
        ),
        (
            {"IdempotencyToken": "x" * 1025},
            "IdempotencyToken has 1025 characters; the maximum is 1024",
        ),
    ],
)
async def test_text_that_no_child_can_have_is_refused(
    parent: Parent, fields: dict[str, str], words: str
) -> None:
    await parent.register()
    (refused, done) = await parent.dispatch(fields, {"IdPrefixTemplate": "x" * 1024})
    assert (refused.field, refused.error) == (next(iter(fields)), words)
    assert done.eval_id
    request = DispatchRequestData(
        payload=b"",
        meta={},
        id_prefix=fields.get("IdPrefixTemplate", ""),
        token=fields.get("IdempotencyToken", ""),
    )
    with pytest.raises(Invalid, match=words):
        await dispatch_job(
            parent.store, "default", "web", request, now=NOW, ids=parent.ids, suffix="s"
        )
