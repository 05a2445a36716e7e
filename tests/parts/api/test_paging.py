"""A list that is read page by page has the same entries as in one read."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from daemon.api import jobs as api_jobs
from daemon.api import paging
from daemon.api.cluster import allocations as api_allocations
from daemon.api.cluster import evaluations as api_evaluations
from daemon.api.cluster import services as api_services
from daemon.api.paging import Key, paginate
from daemon.api.routes import LIST, READ_ALL
from daemon.jobspec import filter as filters
from daemon.jobspec.filter import compile_filter
from daemon.jobspec.filters.conditions import Conditions
from daemon.jobspec.filters.syntax import parse
from daemon.web.blocking import _read
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadHandler, ReadRoute
from daemon.web.response_cache import ResponseCache
from storage.errors import Malformed
from storage.queries import allocations, evaluations, job_status, jobs, namespaces, services
from storage.queries.pages import PageRequest
from storage.records import allocation_views
from storage.records.codec import encode
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.namespace import Namespace
from storage.records.service import Registration, ServiceAddress
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api import full_store
from tests.parts.api.requests import caller, request
from tests.samples import NOW, evaluation, job

NUMBER = 60
ROUTES: dict[str, ReadRoute] = {
    "/evaluations": ReadRoute("/v1/evaluations", api_evaluations.index, READ_ALL),
    "/jobs": ReadRoute("/v1/jobs", api_jobs.index, LIST),
    "/services": ReadRoute("/v1/services", api_services.index, READ_ALL),
}
RULES = 'namespace "one" { policy = "read" }'


@pytest.fixture
async def filled(store: Store) -> Store:
    """A store with evaluations of two namespaces, some of them with the same write index."""

    def write(tx: Transaction, numbers: Iterable[int]) -> None:
        for number in numbers:
            namespace = "one" if number % 3 else "default"
            name = f"job-{number % 7}"
            made = msgspec.structs.replace(
                evaluation(job(name)),
                id=f"{number * 2654435761 % 2**32:08x}-0000-4000-8000-000000000000",
                namespace=namespace,
                status=EvalStatus.COMPLETE if number % 2 else EvalStatus.CANCELED,
            )
            evaluations.put(tx, made, NOW)
            if number < 14:
                parent = msgspec.structs.replace(job(name), namespace=namespace)
                jobs.append_version(tx, parent)
                job_status.refresh_summary(tx, namespace, name)

    await store.write(lambda tx: namespaces.put(tx, Namespace(name="one")))
    for first in range(0, NUMBER, 4):
        await store.write(lambda tx, first=first: write(tx, range(first, first + 4)))
    return store


async def ask(store: Store, path: str, rules: str | None = None, **query: object) -> HandlerReply:
    """Return all pages of a route together."""
    route = ROUTES[path]
    words = urlencode({name: str(value) for name, value in query.items()})
    asked = request(store, route.needs, caller(rules), query=words)
    made = await _read(route, asked, ResponseCache())
    if made.stream is None:
        return made
    body = b"".join([piece async for piece in made.stream])
    return msgspec.structs.replace(made, body=body, stream=None)


def said(handler_reply: HandlerReply) -> list[dict[str, object]]:
    assert isinstance(handler_reply.body, bytes)
    found: list[dict[str, object]] = msgspec.json.decode(handler_reply.body)
    return found


def expected(
    store: Store, query: dict[str, object], visible: Sequence[str]
) -> tuple[list[str], str]:
    """Return the IDs and the token of a listing that reads everything first."""

    def key(evaluation: evaluations.EvaluationLine) -> Key:
        return evaluation.create_index, evaluation.id

    prefix, namespace = str(query.get("prefix", "")), str(query.get("namespace", "default"))
    matches = compile_filter(str(query["filter"]), Evaluation) if "filter" in query else None
    every = [
        evaluation
        for evaluation in store.read(
            lambda db: list(evaluations.page(db, PageRequest(namespace="*")))
        )
        if evaluation.id.startswith(prefix) and evaluation.namespace in visible
        if namespace in ("*", evaluation.namespace)
        if matches is None or matches(msgspec.json.decode(evaluation.document))
    ]
    assert every == sorted(every, key=key)
    words = urlencode({name: str(value) for name, value in query.items()})
    page = paginate(every, key, lambda evaluation: encode(evaluation.id), QueryParameters(words))
    return msgspec.json.decode(page.body, type=list[str]), page.next_token


QUERIES: list[dict[str, object]] = [
    {},
    {"reverse": "true"},
    {"per_page": 7},
    {"per_page": 7, "reverse": "true"},
    {"per_page": 1},
    {"per_page": -1},
    {"per_page": 1000},
    {"prefix": "9e"},
    {"prefix": "9e37", "per_page": 3},
    {"filter": 'Status == "complete"', "per_page": 4},
    {"filter": 'Priority != 50 or JobID contains "-3"', "per_page": 4},
    {"filter": 'Status != "complete" and JobID matches "^job-[35]"', "reverse": "true"},
    {"filter": 'JobID == "job-2" and Status == "complete"', "per_page": 2},
]


@pytest.mark.parametrize("rows", [1, 5, 1000])
@pytest.mark.parametrize("size", [1, 2000, 10**6])
@pytest.mark.parametrize("query", QUERIES)
async def test_pages_are_equal_to_the_whole_list(
    filled: Store, monkeypatch: pytest.MonkeyPatch, query: dict[str, object], rows: int, size: int
) -> None:
    monkeypatch.setattr(paging, "STEP_ROWS", rows)
    monkeypatch.setattr(paging, "STEP_BYTES", size)
    for namespace in ("*", "one"):
        asked: dict[str, object] = {**query, "namespace": namespace}
        shown: list[object] = []
        for _ in range(NUMBER + 1):
            made = await ask(filled, "/evaluations", **asked)
            ids, token = expected(filled, asked, ("default", "one"))
            assert [item["ID"] for item in said(made)] == ids
            assert made.next_token == token
            shown += ids
            if not token or query.get("per_page") == -1:
                break
            asked["next_token"] = token
        assert len(set(map(str, shown))) == len(shown)


async def test_page_shows_only_objects_visible_to_its_caller(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "STEP_ROWS", 3)
    asked: dict[str, object] = {"namespace": "*", "per_page": 5}
    made = await ask(filled, "/evaluations", RULES, **asked)
    ids, token = expected(filled, asked, ("one",))
    assert ([item["ID"] for item in said(made)], made.next_token) == (ids, token)


@pytest.mark.parametrize("reverse", ["false", "true"])
async def test_pages_of_jobs_are_consecutive(filled: Store, reverse: str) -> None:
    every = said(await ask(filled, "/jobs", namespace="*", reverse=reverse))
    assert len(every) > 10
    shown: list[dict[str, object]] = []
    token = ""
    while not shown or token:
        made = await ask(
            filled, "/jobs", namespace="*", per_page=3, next_token=token, reverse=reverse
        )
        shown, token = shown + said(made), made.next_token
    assert shown == every


@pytest.mark.parametrize("token", ["", "nonsense", "99999999999999999999999.x", "-5.x", "3"])
async def test_unusual_token_is_a_position_in_the_order(filled: Store, token: str) -> None:
    asked: dict[str, object] = {"namespace": "*", "next_token": token, "per_page": 3}
    made = await ask(filled, "/evaluations", **asked)
    ids, following = expected(filled, asked, ("default", "one"))
    assert ([item["ID"] for item in said(made)], made.next_token) == (ids, following)


async def test_readable_list_is_readable_in_parts(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"namespace": "*", "pretty": "1"}
    whole = await ask(filled, "/evaluations", **asked)
    monkeypatch.setattr(paging, "STEP_BYTES", 1)
    monkeypatch.setattr(paging, "STEP_ROWS", 2)
    parts = await ask(filled, "/evaluations", **asked)
    assert isinstance(whole.body, bytes)
    assert parts.body == msgspec.json.format(whole.body, indent=4) + b"\n"


async def test_page_reads_no_row_before_its_position(filled: Store) -> None:
    """A short read may read a limited number of rows.

    The last page of a long list stays within it.
    """

    def last(handler: ReadHandler) -> str:
        words = "namespace=*&per_page=2&reverse=true"
        asked = request(filled, READ_ALL, caller(), query=words)
        return filled.read_short(lambda db: handler(asked, db)).next_token

    def many(tx: Transaction) -> None:
        for number in range(2000):
            made = msgspec.structs.replace(evaluation(job("web")), id=f"{number:036x}")
            evaluations.put(tx, made, NOW)

    await filled.write(many)
    assert last(api_evaluations.index)
    assert last(api_allocations.list_allocations) == ""


# ---- filters that the store evaluates -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('JobID == "a"', 1),
        ('JobID == "a" and Namespace != "b"', 2),
        ('(JobID == "a" or JobID == "b") and not ID contains "x"', 2),
        ('JobID matches "^a-b"', 1),
        ('JobID matches "a-b"', 0),
        ('JobID matches "^a.b"', 0),
        ('Priority == 50 and JobID == "a"', 0),  # the first term can raise an error
        ('JobID == "a" and Priority == 50 and Namespace == "b"', 1),
        ('JobID == "a" or Priority == 50', 0),
        ("JobID is empty", 0),
        (" or ".join(f'JobID == "{number}"' for number in range(1000)), 0),
    ],
)
def test_only_leading_terms_of_a_filter_are_evaluated_by_the_store(text: str, number: int) -> None:
    assert len(Conditions(parse(text), evaluations.COLUMNS).texts) == number


@pytest.mark.parametrize("columns", [evaluations.COLUMNS, allocations.COLUMNS])
def test_every_filtered_column_is_a_text_of_the_document(columns: dict[str, str]) -> None:
    record = Evaluation if columns is evaluations.COLUMNS else allocation_views.AllocationStub
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(record)}
    assert all(issubclass(fields[name], str) for name in columns)


# ---- groups: elements that consist of several rows ----------------------------------------------


@pytest.fixture
async def serving(store: Store) -> Store:
    """A store with 40 services in each of two namespaces, each with two instances."""

    def offer(number: int) -> ServiceAddress:
        registration = Registration(
            id=f"_{number:04}",
            service_name=f"web.{number % 40:02}",
            namespace="one" if number % 80 >= 40 else "default",
            node_id="node",
            datacenter="dc1",
            job_id="old",
            alloc_id=full_store.ALLOC,
            tags=["both", f"t{number}"],
            address="127.0.0.1",
            port=80,
        )
        return ServiceAddress(registration, None)

    def write(tx: Transaction) -> None:
        namespaces.put(tx, Namespace(name="one"))
        namespaces.put(tx, Namespace(name="empty"))
        services.replace_registrations(tx, full_store.ALLOC, map(offer, range(160)))

    await full_store.fill(store, 1, 1)
    await store.write(write)
    return store


SERVICES = [
    {
        "Namespace": namespace,
        "Services": [
            {"ServiceName": f"web.{n:02}", "Tags": ["both", f"t{first + n}", f"t{first + n + 80}"]}
            for n in range(40)
        ],
    }
    for namespace, first in (("default", 0), ("one", 40))
]


@pytest.mark.parametrize("step_bytes", [1, 200, paging.STEP_BYTES])
@pytest.mark.parametrize("step_rows", [1, 7, paging.STEP_ROWS])
async def test_services_of_a_namespace_are_one_element_with_any_step_size(
    serving: Store, monkeypatch: pytest.MonkeyPatch, step_bytes: int, step_rows: int
) -> None:
    monkeypatch.setattr(paging, "STEP_BYTES", step_bytes)
    monkeypatch.setattr(paging, "STEP_ROWS", step_rows)
    assert said(await ask(serving, "/services", namespace="*")) == SERVICES
    assert said(await ask(serving, "/services", namespace="*", pretty=1)) == SERVICES
    assert said(await ask(serving, "/services", RULES, namespace="*")) == SERVICES[1:]
    only = await ask(serving, "/services", namespace="*", filter='Tags contains "t41"')
    lines = [{"ServiceName": "web.01", "Tags": ["both", "t41", "t121"]}]
    assert said(only) == [{"Namespace": "one", "Services": lines}]
    nothing = await ask(serving, "/services", namespace="*", filter='Tags contains "t"')
    assert said(nothing) == []


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("step_bytes", [1, 200, paging.STEP_BYTES])
@pytest.mark.parametrize("per_page", [1, 3, 40, 79, 80, 81])
async def test_pages_of_services_are_split_at_names(
    serving: Store, monkeypatch: pytest.MonkeyPatch, step_bytes: int, per_page: int, reverse: str
) -> None:
    monkeypatch.setattr(paging, "STEP_BYTES", step_bytes)
    pages = await walked(serving, per_page, reverse)
    names = [
        [(of["Namespace"], service["ServiceName"]) for of in page for service in of["Services"]]
        for page in pages
    ]
    every = [
        (of["Namespace"], service["ServiceName"]) for of in SERVICES for service in of["Services"]
    ]
    assert [*chain.from_iterable(names)] == (every if reverse == "false" else every[::-1])
    assert {len(page) for page in names[:-1]} <= {per_page}


async def walked(store: Store, per_page: int, reverse: str) -> list[Any]:
    """Return all pages of services."""
    pages, token = [], ""
    while True:
        made = await ask(
            store, "/services", namespace="*", per_page=per_page, reverse=reverse, next_token=token
        )
        pages.append(said(made))
        if not (token := made.next_token):
            return pages


@pytest.mark.parametrize("query", [{}, {"per_page": 7}])
async def test_slow_filter_is_reported_after_an_earlier_step_has_ended(
    filled: Store, monkeypatch: pytest.MonkeyPatch, query: dict[str, object]
) -> None:
    monkeypatch.setattr(paging, "STEP_ROWS", 5)
    monkeypatch.setattr(filters, "_FREE_STEPS", 0)
    monkeypatch.setattr(filters, "MAX_STEPS", 40)
    asked = {"namespace": "*", "filter": 'JobID matches "^none$"', **query}
    with pytest.raises(Malformed, match="the filter takes too long: more than 40 steps"):
        await ask(filled, "/evaluations", **asked)
    monkeypatch.setattr(filters, "MAX_STEPS", 400)
    assert said(await ask(filled, "/evaluations", **asked)) == []
