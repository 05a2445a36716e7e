"""Routes without options, methods of routes, and requests of operators and other clients."""

from typing import Any

import pytest

from daemon.acl.check import ANYONE
from daemon.web.listeners import PeerAddress
from daemon.web.reply import HandlerReply
from daemon.web.request import (
    SHORT,
    Endpoint,
    Operation,
    ReadRoute,
    Request,
    RouteCall,
    StreamRoute,
    WebSocketRoute,
    WriteRoute,
)
from daemon.web.request_head import RequestHead
from storage.errors import Denied

HANDLER: Any = None
EXPECTED: tuple[tuple[object, set[str]], ...] = (
    (ReadRoute("/a", HANDLER, ANYONE), {"path", "needs", "methods"}),
    (WriteRoute("POST", "/a", HANDLER, ANYONE), {"method", "path", "needs"}),
    (StreamRoute("/a", HANDLER, ANYONE), {"path", "needs"}),
    (WebSocketRoute("/a", HANDLER, ANYONE), {"path", "needs"}),
    (Endpoint("/a"), {"path"}),
    (
        HandlerReply(),
        {"status", "knows_leader", "content_type"},
    ),
    (RequestHead(method="GET", target=b"/a", query="q", headers={}), {"method", "target", "query"}),
)


def request(kind: type[Request] = Request, **fields: object) -> Any:
    empty = dict.fromkeys(kind.__struct_fields__, "")
    return kind(**{**empty, "peer": None, "unknown": [], "warnings": [], "passed": [], **fields})


@pytest.mark.parametrize(("item", "names"), EXPECTED)
def test_options_are_off_by_default(item: Any, names: set[str]) -> None:
    assert {name for name in item.__struct_fields__ if getattr(item, name)} == names


@pytest.mark.parametrize(
    ("route", "methods"),
    [
        (ReadRoute("/a", HANDLER, ANYONE), {"GET"}),
        (WriteRoute("POST", "/a", HANDLER, ANYONE), {"POST", "PUT"}),
        (WriteRoute("DELETE", "/a", HANDLER, ANYONE), {"DELETE"}),
        (StreamRoute("/a", HANDLER, ANYONE), {"GET"}),
        (WebSocketRoute("/a", HANDLER, ANYONE), {"GET", "POST", "PUT"}),
    ],
)
def test_route_has_its_methods(route: Any, methods: set[str]) -> None:
    assert route.methods == methods


@pytest.mark.parametrize(
    ("peer", "operator"),
    [
        (None, None),
        (PeerAddress(7, is_operator=False), None),
        (PeerAddress(7, is_operator=True), 7),
    ],
)
def test_only_an_operator_needs_no_token(peer: PeerAddress | None, operator: int | None) -> None:
    assert request(peer=peer).operator == operator


def test_wrong_credentials_count_against_the_user_or_the_address() -> None:
    assert request(user="user 7", address="::1").client_key == "user 7"
    assert request(address="10.0.0.1").client_key == "10.0.0.1"


def test_remarks_are_reported_once() -> None:
    asked = request(unknown=["a"], warnings=["b"])
    asked.note_deletion("job", "web", existed=True)
    asked.note_deletion("job", "web", existed=False)
    assert asked.remarks() == [
        'unknown field "a" is ignored',
        "b",
        'nothing was deleted: there is no job "web"',
    ]
    assert asked.remarks() == []


def test_failed_check_is_not_repeated() -> None:
    asked = request()
    asked.check(lambda caller: True)
    with pytest.raises(Denied):
        asked.check(lambda caller: False)
    assert len(asked.passed) == 1


@pytest.mark.parametrize(("size", "is_long"), [(0, False), (SHORT, False), (SHORT + 1, True)])
def test_long_body_of_a_call_is_not_for_the_event_loop(size: int, is_long: bool) -> None:
    call = request(RouteCall, body=bytes(size), operation=Operation.WRITE, path="/v1/sys/auth")
    assert (call.is_long, call.name) == (is_long, "sys/auth")


@pytest.mark.parametrize("operation", Operation)
def test_endpoint_has_a_handler_for_its_operation_only(operation: Operation) -> None:
    async def handle(call: RouteCall) -> HandlerReply:
        return HandlerReply()

    endpoint: Any = Endpoint("/v1/sys/auth", **{str(operation): handle})
    assert [other for other in Operation if endpoint.handler(other)] == [operation]
    assert endpoint.handler(operation) is handle
