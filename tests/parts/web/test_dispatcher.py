"""The dispatcher: request IDs, regions, audit entries, IDs of jobs with slashes, and failures."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE, MANAGEMENT
from daemon.app.context import AppContext
from daemon.config.settings import Settings
from daemon.web.asgi_app import body_memory, host_memory
from daemon.web.dispatcher import REQUEST_ID, Dispatcher
from daemon.web.listeners import PeerAddress
from daemon.web.reply import HandlerReply, WireResponse, read_reply
from daemon.web.request import (
    ReadRoute,
    Request,
    StreamRoute,
    WebSocketRoute,
    WriteRoute,
)
from daemon.web.request_head import RequestHead
from daemon.web.server import public_context
from daemon.web.ui_session import HEADERS, UiPage, UiRequest
from storage.queries import audit, jobs
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.samples import NOW, job


def show(request: Request, db: ReadSnapshot) -> HandlerReply:
    return read_reply({"Path": request.path, "Job": request.parameters.get("job_id")}, 1)


def fail(request: Request, db: ReadSnapshot) -> HandlerReply:
    raise ZeroDivisionError("a defect")


async def act(request: Request) -> HandlerReply:
    return HandlerReply(body={})


async def talk(request: Request, socket: object) -> None:
    """Say nothing."""


async def fail_page(ui_request: UiRequest) -> HandlerReply:
    raise ZeroDivisionError("a defect")


ROUTES = (
    ReadRoute("/v1/show", show, ANYONE),
    ReadRoute("/v1/secret", show, MANAGEMENT, shows_secrets=True),
    ReadRoute("/v1/any", show, ANYONE, any_method=True),
    ReadRoute("/v1/long", show, ANYONE, long=True),
    ReadRoute("/v1/fail", fail, ANYONE),
    ReadRoute("/v1/job/{job_id}", show, MANAGEMENT),
    WriteRoute("DELETE", "/v1/job/{job_id}", act, ANYONE),
    ReadRoute("/v1/job/{job_id}/state", show, ANYONE),
    ReadRoute("/v1/job/{job_id}/versions", show, ANYONE),
    WriteRoute("POST", "/v1/act", act, ANYONE, acts=True),
    WriteRoute("POST", "/v1/write", act, ANYONE, hot=True),
    WriteRoute("POST", "/v1/anywhere", act, ANYONE, in_any_region=True),
    StreamRoute("/v1/stream", act, ANYONE),
    StreamRoute("/v1/acting", act, ANYONE, acts=True),
    WebSocketRoute("/v1/talk", talk, ANYONE),
)
MIB = 1024 * 1024
Ask = Callable[..., Awaitable[WireResponse]]


def opened(parts: AppContext) -> tuple[Dispatcher, Ask]:
    dispatcher = Dispatcher(parts, ROUTES, (), trio.Event(), [UiPage("/ui/fail", fail_page)])

    async def ask(method: str, target: str, query: str = "", **headers: str) -> WireResponse:
        async def body() -> bytes:
            return b""

        return await dispatcher.answer(head(method, target, query, **headers), body)

    return dispatcher, ask


def head(method: str, target: str, query: str = "", **headers: str) -> RequestHead:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"host": "localhost", **given}
    return RequestHead(method=method, target=target.encode(), query=query, headers=given)


@pytest.fixture
async def ask(store: Store) -> Ask:
    """Return a function that sends a request to a daemon without access control."""
    return opened(parts_of(store, asks=False))[1]


@pytest.fixture
async def dispatcher(store: Store) -> Dispatcher:
    return opened(parts_of(store, asks=False))[0]


def shown(answer: WireResponse) -> Any:
    assert answer.status == 200
    return msgspec.json.decode(answer.body)


# --- failures ---


async def test_failed_page_is_an_error_page_of_its_own(ask: Ask) -> None:
    answer = await ask("GET", "/ui/fail")
    assert (answer.status, answer.headers["Content-Type"]) == (500, "text/html; charset=utf-8")
    assert b"Internal error" in answer.body
    assert HEADERS.items() <= answer.headers.items()
    assert answer.headers["Cache-Control"] == "no-store"
    assert b"ZeroDivisionError" not in answer.body


async def test_failed_request_of_the_api_is_plain_text(ask: Ask) -> None:
    answer = await ask("GET", "/v1/fail")
    assert (answer.status, answer.headers["Content-Type"]) == (500, "text/plain; charset=utf-8")
    assert b"<" not in answer.body


# --- request IDs ---


@pytest.mark.parametrize(
    ("sent", "is_used"),
    [("a.b:c=+/@-_1", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False)],
)
async def test_request_id_of_a_client_is_used_if_it_is_plain(
    ask: Ask, sent: str, is_used: bool
) -> None:
    answer = await ask("GET", "/v1/show", x_request_id=sent)
    assert answer.headers[REQUEST_ID] == (sent if is_used else "id-0")


# --- targets ---


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v1/show", 200),
        ("POST", "/v1/show", 405),
        ("POST", "/v1/any", 200),
        ("GET", "/v1/act", 405),
        ("PUT", "/v1/act", 200),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/talk", 500),
        ("GET", "/v1//show", 307),
        ("GET", "/v1/./show", 307),
        ("GET", "/v1/job", 307),
        ("GET", "/ui", 404),
    ],
)
async def test_target_and_method_decide_about_the_status(
    ask: Ask, method: str, target: str, status: int
) -> None:
    assert (await ask(method, target)).status == status


async def test_redirect_keeps_the_query(ask: Ask) -> None:
    answer = await ask("GET", "/v1//show", 'a=1&b="2"')
    assert answer.headers["Location"] == '/v1/show?a=1&b="2"'
    assert answer.body == (b'<a href="/v1/show?a=1&amp;b=&#34;2&#34;">Temporary Redirect</a>.\n\n')
    assert (await ask("GET", "/v1/job")).headers["Location"] == "/v1/job/"


@pytest.mark.parametrize(
    ("method", "target", "query", "status"),
    [
        ("GET", "/v1/show", "region=global", 200),
        ("GET", "/v1/show", "region=", 200),
        ("GET", "/v1/show", "region=other", 500),
        ("POST", "/v1/write", "region=other", 500),
        ("POST", "/v1/anywhere", "region=other", 200),
    ],
)
async def test_another_region_has_no_path(
    ask: Ask, method: str, target: str, query: str, status: int
) -> None:
    answer = await ask(method, target, query)
    assert answer.status == status
    assert (answer.body == b"No path to region") is (status == 500)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("per_page=1", 200),
        ("per_page=-1", 200),
        ("per_page=%2B1", 200),
        (f"per_page={2**31 - 1}", 200),
        (f"per_page={2**31}", 400),
        (f"per_page=-{2**31}", 200),
        (f"per_page=-{2**31 + 1}", 400),
        ("per_page=x", 400),
        ("per_page=-", 400),
        ("per_page=\u0661", 400),
        ("stale=true", 200),
        ("stale=x", 400),
    ],
)
async def test_parameters_of_all_reads_are_checked(ask: Ask, query: str, status: int) -> None:
    assert (await ask("GET", "/v1/show", query)).status == status


# --- IDs of jobs with slashes ---


@pytest.mark.parametrize(
    ("existing", "target", "job_id"),
    [
        ((), "/v1/job/a/state", "a"),
        (("a",), "/v1/job/a/state", "a"),
        (("a/state",), "/v1/job/a/state", "a/state"),
        (("a", "a/state"), "/v1/job/a/state", "a"),
        (("a/versions",), "/v1/job/a/versions", "a"),  # an endpoint of Nomad
    ],
)
async def test_path_of_an_own_endpoint_can_be_the_id_of_a_job(
    store: Store, ask: Ask, existing: tuple[str, ...], target: str, job_id: str
) -> None:
    for name in existing:
        await store.write(lambda tx, name=name: jobs.append_version(tx, job(name)))
    assert shown(await ask("GET", target))["Job"] == job_id


async def test_job_whose_id_ends_like_an_open_endpoint_needs_its_own_permission(
    store: Store,
) -> None:
    _, ask = opened(parts_of(store))
    assert (await ask("GET", "/v1/job/a/state")).status == 200
    await store.write(lambda tx: jobs.append_version(tx, job("a/state")))
    assert (await ask("GET", "/v1/job/a/state")).status == 403


async def test_method_that_an_own_endpoint_lacks_belongs_to_the_job(dispatcher: Dispatcher) -> None:
    match = dispatcher.target_of(head("DELETE", "/v1/job/a/state"))
    assert match.parameters == {"job_id": "a/state"}
    assert match.route is ROUTES[6]
    nomad = dispatcher.target_of(head("DELETE", "/v1/job/a/versions"))
    assert (nomad.route, nomad.parameters) == (None, {"job_id": "a"})


# --- audit entries ---


async def entries(parts: AppContext) -> list[tuple[str, int]]:
    await parts.audit.flush()
    found = parts.store.read(lambda db: audit.after(db, 0))
    return [(entry.path, entry.status) for entry in found]


@pytest.mark.parametrize(
    ("method", "target", "is_recorded"),
    [
        ("POST", "/v1/act", True),
        ("POST", "/v1/write", False),  # the store records changes
        ("GET", "/v1/acting", True),
        ("GET", "/v1/stream", False),
        ("GET", "/v1/show", False),
    ],
)
async def test_calls_with_an_effect_outside_the_store_are_recorded(
    store: Store, method: str, target: str, is_recorded: bool
) -> None:
    parts = parts_of(store, asks=False)
    _, ask = opened(parts)
    assert (await ask(method, target)).status == 200
    assert await entries(parts) == [(target, 200)] * is_recorded


@pytest.mark.parametrize("is_set", [True, False])
async def test_a_setting_records_reads_of_secrets(store: Store, is_set: bool) -> None:
    parts = parts_of(store, Settings(audit_reads=is_set), asks=False)
    _, ask = opened(parts)
    for target in ("/v1/secret", "/v1/show"):
        assert (await ask("GET", target)).status == 200
    assert await entries(parts) == [("/v1/secret", 200)] * is_set


async def test_denied_request_is_recorded_with_its_status(store: Store) -> None:
    parts = parts_of(store)
    _, ask = opened(parts)
    token = Token(accessor="a", policies=("none",), created_at=NOW)
    secret = (await parts.tokens.issue(token)).secret
    before = await entries(parts)
    assert (await ask("GET", "/v1/secret", x_nomad_token=secret)).status == 403
    assert (await entries(parts))[len(before) :] == [("/v1/secret", 403)]


# --- clients, and the fast path ---


async def test_limits_count_a_local_user_an_address_or_no_operator(dispatcher: Dispatcher) -> None:
    def client(**fields: object) -> str:
        return dispatcher.client(msgspec.structs.replace(head("GET", "/v1/show"), **fields))

    assert client(client="10.0.0.1") == "10.0.0.1"
    assert client(client="127.0.0.1", user="user 7") == "user 7"
    assert client(user="user 7", peer=PeerAddress(7, is_operator=False)) == "user 7"
    assert client(user="user 0", peer=PeerAddress(0, is_operator=True)) == ""


@pytest.mark.parametrize(
    ("method", "target", "is_hot"),
    [
        ("GET", "/v1/show", True),
        ("POST", "/v1/any", False),
        ("GET", "/v1/any", True),
        ("GET", "/v1/long", False),
        ("POST", "/v1/write", True),
        ("PUT", "/v1/write", True),
        ("POST", "/v1/act", False),
        ("GET", "/v1/stream", False),
        ("GET", "/v1/talk", False),
        ("GET", "/v1/nothing", False),
        ("GET", "/ui/fail", False),
    ],
)
async def test_fast_path_answers_short_reads_and_hot_writes(
    dispatcher: Dispatcher, method: str, target: str, is_hot: bool
) -> None:
    request = head(method, target)
    assert dispatcher.is_hot(request, dispatcher.target_of(request)) is is_hot


@pytest.mark.parametrize(
    ("method", "query", "may_wait"),
    [
        ("GET", "", False),
        ("GET", "namespace=a", False),
        ("GET", "index=1", True),
        ("GET", "filter=x", True),
        ("GET", "%69ndex=1", True),
        ("POST", "", True),
    ],
)
async def test_writes_and_reads_that_block_or_filter_may_wait(
    dispatcher: Dispatcher, method: str, query: str, may_wait: bool
) -> None:
    assert dispatcher.may_wait(head(method, "/v1/show", query)) is may_wait


# --- public documents ---


async def test_public_documents_are_served_under_any_name(store: Store) -> None:
    parts = parts_of(store, Settings(host_names=["steward.lan"]), asks=False)
    for context, status in ((parts, 421), (public_context(parts), 200)):
        _, ask = opened(context)
        assert (await ask("GET", "/v1/show", host="any.example")).status == status
    assert parts.config.host_names == ["steward.lan"]


@pytest.mark.parametrize(
    ("memory", "bodies"),
    [(0, 64 * MIB), (1024 * MIB, 64 * MIB), (1600 * MIB, 100 * MIB), (2**50, 512 * MIB)],
)
def test_memory_for_bodies_is_a_sixteenth_within_limits(memory: int, bodies: int) -> None:
    assert body_memory(memory) == bodies
    assert host_memory() > 2**20
