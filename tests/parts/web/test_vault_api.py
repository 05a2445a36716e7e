"""Calls of the Vault API: rejections before the handler, permissions, help, and warnings."""

from typing import Any

import msgspec
import pytest
import trio

from daemon.app.context import AppContext
from daemon.web.dispatcher import Dispatcher
from daemon.web.reply import WireResponse
from daemon.web.request import SHORT_BODY, Endpoint, RouteCall
from daemon.web.request_head import RequestHead
from daemon.web.vault_envelope import VaultBody, plain
from storage.queries import mounts, policies
from storage.records.acl import Policy, Token
from storage.records.identity import Mount
from storage.request_context import Permission, permission_scope
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.samples import NOW

ONE = "1 error occurred:\n\t* {}\n\n"
MERGE = "application/merge-patch+json"
DENIED = ONE.format("permission denied")
UNSUPPORTED = ONE.format("unsupported operation")


async def show(call: RouteCall) -> VaultBody:
    """Return the parts of a call that a handler sees."""
    return VaultBody(
        data={
            "fields": dict(call.fields.values),
            "name": call.name,
            "mount": call.mount,
            "operation": str(call.operation),
            "parameters": dict(call.parameters),
        }
    )


async def nothing(call: RouteCall) -> VaultBody:
    return VaultBody()


async def bare(call: RouteCall) -> Any:
    return plain({"bare": True})


def exists(call: RouteCall) -> bool:
    return call.parameters["path"] == "old"


ENDPOINTS = (
    Endpoint("/v1/sys/things/{path}", read=show, write=show, delete=nothing, exists=exists),
    Endpoint("/v1/sys/list", list=show),
    Endpoint("/v1/sys/all", list=show, lists_all=True),
    Endpoint("/v1/sys/open", read=show, write=show, is_open=True),
    Endpoint("/v1/sys/bare", read=bare, is_open=True, is_bare=True),
    Endpoint("/v1/sys/root-only", read=show, sudo=True),
    Endpoint("/v1/sys/known", read=show, write=show, knows=("a",), keeps=("b",)),
    Endpoint("/v1/sys/hot", read=show, write=show, hot=True),
    Endpoint("/v1/auth/{mount}/config", read=show),
)
# rules of a policy for the endpoints
RULES = """
path "sys/things/*"   { capabilities = ["read", "update"] }
path "sys/things/new" { capabilities = ["create"] }
path "sys/list/"      { capabilities = ["list"] }
path "sys/root-only"  { capabilities = ["read"] }
path "sys/known"      { capabilities = ["read", "update"] denied_parameters = { "c" = [] } }
path "sys/hot"        { capabilities = ["read"] min_wrapping_ttl = "10s" }
path "sys/nothing"    { capabilities = ["read"] }
"""


class Vault:
    """Clients of the Vault API: one with all permissions, and one with the policy."""

    def __init__(self, parts: AppContext, secrets: dict[str, str]) -> None:
        self.dispatcher = Dispatcher(parts, (), ENDPOINTS, trio.Event())
        self.secrets = secrets

    def head(
        self, method: str, path: str, query: str = "", *, sender: str = "root", **headers: str
    ) -> RequestHead:
        given = {"host": "localhost", "x-request-id": "1"}
        if sender:
            given["x-vault-token"] = self.secrets.get(sender, sender)
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return RequestHead(method=method, target=f"/v1/{path}".encode(), query=query, headers=given)

    async def send(self, head: RequestHead, content: bytes = b"") -> WireResponse:
        async def body() -> bytes:
            return content

        return await self.dispatcher.answer(head, body)

    async def call(
        self, method: str, path: str, query: str = "", content: bytes = b"", **headers: str
    ) -> tuple[int, Any]:
        """Return the status and the decoded body of a response."""
        answer = await self.send(self.head(method, path, query, **headers), content)
        return answer.status, msgspec.json.decode(answer.body) if answer.body else None


@pytest.fixture
async def vault(store: Store) -> Vault:
    parts = parts_of(store)
    await store.write(lambda tx: policies.put(tx, Policy(name="some", rules=RULES)))
    secrets = {}
    for name, policy in (("root", "root"), ("some", "some")):
        token = Token(accessor=name, policies=(policy,), created_at=NOW)
        secrets[name] = (await parts.tokens.issue(token)).secret
    return Vault(parts, secrets)


# --- rejections before the handler ---


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "errors"),
    [
        ("GET", "sys/open%00", {}, 400, None),
        ("GET", "sys/open%ff", {}, 500, [ONE.format("the path is not valid UTF-8")]),
        ("GET", "sys/open", {"x_vault_namespace": "team"}, 404, ["namespace not found"]),
        ("GET", "sys/open", {"x_service_namespace": "team"}, 404, ["namespace not found"]),
        ("PATCH", "sys/open", {"content_type": f"{MERGE}; charset=utf-8"}, 405, [UNSUPPORTED]),
        (
            "PATCH",
            "sys/open",
            {"content_type": "text/plain"},
            415,
            [f"PATCH requires Content-Type of {MERGE}, provided text/plain"],
        ),
        ("OPTIONS", "sys/open", {}, 405, [UNSUPPORTED]),
        ("HEAD", "sys/open", {}, 405, None),
        ("TRACE", "sys/open", {}, 405, []),
        ("POST", "sys/things/a/", {}, 400, ["cannot write to a path ending in '/'"]),
        ("PUT", "sys/things/a/", {}, 400, ["cannot write to a path ending in '/'"]),
    ],
)
async def test_unsupported_call_is_rejected(
    vault: Vault,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    errors: list[str] | None,
) -> None:
    found = await vault.call(method, path, **headers)
    assert found == (status, None if errors is None else {"errors": errors})


@pytest.mark.parametrize("name", ["", "root", "/", "root/"])
async def test_root_namespace_is_accepted(vault: Vault, name: str) -> None:
    assert (await vault.call("GET", "sys/open", x_vault_namespace=name))[0] == 200


async def test_response_without_an_envelope_may_be_asked_for_its_head(vault: Vault) -> None:
    assert await vault.call("GET", "sys/bare") == (200, {"bare": True})
    assert (await vault.send(vault.head("HEAD", "sys/bare"))).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "errors"),
    [
        ("LIST", "sys/things/a", 404, ["unsupported path"]),
        ("GET", "sys/list", 405, ["unsupported operation"]),
        ("DELETE", "sys/open", 405, None),
        ("DELETE", "sys/bare", 405, None),
        ("GET", "sys/nothing", 404, ["unsupported path"]),
    ],
)
async def test_endpoint_has_only_its_operations(
    vault: Vault, method: str, path: str, status: int, errors: list[str] | None
) -> None:
    expected = (
        {
            "sys/open": ["unsupported operation"],
            "sys/bare": [],
        }.get(path)
        if errors is None
        else [ONE.format(text) for text in errors]
    )
    assert await vault.call(method, path) == (status, {"errors": expected})


# --- fields of a call ---


async def shown(vault: Vault, method: str, path: str, query: str = "", content: bytes = b"") -> Any:
    status, body = await vault.call(method, path, query, content)
    assert status == 200
    return body["data"]


async def test_fields_of_a_write_are_in_its_body(vault: Vault) -> None:
    found = await shown(vault, "POST", "sys/things/a", "x=1", b'{"y": 2}')
    assert found == {
        "fields": {"y": 2},
        "name": "sys/things/a",
        "mount": "sys/",
        "operation": "write",
        "parameters": {"path": "a"},
    }


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("GET", "sys/things/a", {"after": "1", "limit": "2", "x": "3"}),
        ("LIST", "sys/list", {"x": "3"}),
        ("LIST", "sys/all", {"after": "1", "limit": "2", "x": "3"}),
    ],
)
async def test_parameters_of_the_frame_are_no_fields(
    vault: Vault, method: str, path: str, fields: dict[str, str]
) -> None:
    found = await shown(vault, method, path, "pretty=1&after=1&limit=2&x=3&list=0")
    assert found["fields"] == fields


async def test_flag_turns_a_read_into_a_list(vault: Vault) -> None:
    assert (await shown(vault, "GET", "sys/list", "list=true"))["operation"] == "list"
    assert (await shown(vault, "GET", "sys/things/a", "list=false"))["operation"] == "read"
    found = await shown(vault, "POST", "sys/things/a", "list=true")
    assert found["operation"] == "write"


# --- permissions ---


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "sys/things/a", 200),
        ("POST", "sys/things/old", 200),
        ("POST", "sys/things/a", 403),  # it does not exist, and the policy lacks `create`
        ("POST", "sys/things/new", 200),
        ("GET", "sys/things/new", 403),  # the more specific rule decides
        ("DELETE", "sys/things/a", 403),
        ("LIST", "sys/list", 200),
        ("GET", "sys/root-only", 403),  # the policy lacks `sudo`
        ("GET", "sys/hot", 403),  # the rule requires response wrapping
        ("GET", "sys/all", 403),
        ("GET", "sys/nothing", 404),  # permitted, but there is no such endpoint
        ("GET", "sys/open", 200),
        ("LIST", "sys/open", 403),  # another path, which is not open
    ],
)
async def test_policies_decide_about_a_call(
    vault: Vault, method: str, path: str, status: int
) -> None:
    found, body = await vault.call(method, path, sender="some")
    assert found == status
    if status == 403:
        assert body == {"errors": [DENIED]}


async def test_rule_denies_a_parameter_of_a_write_only(vault: Vault) -> None:
    denied = await vault.call("POST", "sys/known", "", b'{"c": 1}', sender="some")
    assert denied == (403, {"errors": [DENIED]})
    assert (await vault.call("POST", "sys/known", "", b'{"a": 1}', sender="some"))[0] == 200
    assert (await vault.call("GET", "sys/known", "c=1", sender="some"))[0] == 200


@pytest.mark.parametrize("token", ["", "unknown"])
async def test_only_an_open_endpoint_needs_no_token(vault: Vault, token: str) -> None:
    denied = {"errors": ["permission denied"]}
    assert await vault.call("GET", "sys/things/a", sender=token) == (403, denied)
    assert (await vault.call("GET", "sys/open", sender=token))[0] == 200
    assert (await vault.call("GET", "sys/bare", sender=token))[0] == 200


@pytest.mark.parametrize(("method", "is_shown"), [("POST", True), ("GET", False)])
async def test_successful_login_is_permitted(vault: Vault, method: str, is_shown: bool) -> None:
    permission = Permission()
    with permission_scope(permission):
        assert (await vault.call(method, "sys/open", sender=""))[0] == 200
    assert permission.is_shown == is_shown


@pytest.mark.parametrize(
    ("token", "path", "status", "read"),
    [
        ("root", "sys/things/a", 200, 1),
        ("some", "sys/things/old", 200, 1),
        ("some", "sys/things/new", 200, 1),
        ("some", "sys/root-only", 403, 0),
        ("some", "sys/other", 403, 0),
        ("", "sys/things/a", 403, 0),
        ("", "sys/open", 413, 0),
        ("some", "sys/open", 413, 0),
        ("root", "sys/open", 200, 1),
    ],
)
async def test_long_body_is_read_only_with_permission(
    vault: Vault, token: str, path: str, status: int, read: int
) -> None:
    number = 0

    async def body() -> bytes:
        nonlocal number
        number += 1
        return b'{"y": 1}'

    head = vault.head("POST", path, sender=token, content_length=str(SHORT_BODY + 1))
    answer = await vault.dispatcher.answer(head, body)
    assert (answer.status, number) == (status, read)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/sys/hot", True),
        ("PUT", "/v1/sys/hot", True),
        ("GET", "/v1/sys/hot", False),
        ("BREW", "/v1/sys/hot", False),
        ("POST", "/v1/sys/known", False),
        ("POST", "/v1/sys/unknown", False),
        ("POST", "/v1/auth/none/login", False),
    ],
)
async def test_fast_path_serves_writes_to_hot_endpoints(
    vault: Vault, method: str, path: str, expected: bool
) -> None:
    head = vault.head(method, path.removeprefix("/v1/"))
    target = vault.dispatcher.target_of(head)
    assert vault.dispatcher.is_hot(head, target) is expected


# --- response wrapping ---


@pytest.mark.parametrize(
    ("value", "status"),
    [("10s", 200), ("60", 200), ("9s", 403), ("0", 403), ("", 403), ("-1s", 400), ("x", 400)],
)
async def test_wrapping_ttl_is_checked(vault: Vault, value: str, status: int) -> None:
    for name in ("x_vault_wrap_ttl", "x_service_wrap_ttl"):
        found, body = await vault.call("GET", "sys/hot", sender="some", **{name: value})
        assert found == status
        if status == 200:
            assert body["wrap_info"]["creation_path"] == "sys/hot"
            assert body["data"] is None
        if status == 400:
            assert body["errors"][0].startswith("error parsing X-Service-Wrap-TTL header: ")


async def test_response_has_the_request_id_unless_it_is_wrapped(vault: Vault) -> None:
    _, body = await vault.call("GET", "sys/hot")
    assert body["request_id"] == "1"
    _, wrapped = await vault.call("GET", "sys/hot", x_vault_wrap_ttl="10s")
    assert wrapped["request_id"] == ""
    assert await vault.call("DELETE", "sys/things/a", x_vault_wrap_ttl="10s") == (204, None)


# --- help and warnings ---


async def test_help_describes_an_endpoint(vault: Vault) -> None:
    _, body = await vault.call("GET", "sys/known", "help=1")
    assert body["help"] == "/v1/sys/known: read, write. See the API documentation."
    assert set(body["openapi"]["paths"]["/sys/known"]) == {"get", "post"}


@pytest.mark.parametrize(
    ("method", "content", "warnings"),
    [
        ("POST", b'{"a": 1, "z": 2}', ["Endpoint ignored these unrecognized parameters: [z]"]),
        ("POST", b'{"a": 1}', None),
        ("GET", b"", None),
    ],
)
async def test_unknown_fields_of_a_write_cause_a_warning(
    vault: Vault, method: str, content: bytes, warnings: list[str] | None
) -> None:
    query = "" if method == "POST" else "z=1"
    status, body = await vault.call(method, "sys/known", query, content)
    assert (status, body["warnings"]) == (200, warnings)


async def test_help_describes_a_login_method(vault: Vault, store: Store) -> None:
    assert (await vault.call("GET", "auth/azure", "help=1"))[0] == 404
    mount = Mount(path="azure/", accessor="m", type="azure", uuid="u")
    await store.write(lambda tx: mounts.put(tx, mount))
    for path in ("auth/azure", "auth/azure/"):
        status, body = await vault.call("GET", path, "help=1")
        assert status == 200
        assert body["help"].endswith("Its paths are config, role, login and rotate-root.")
    assert (await vault.call("GET", "auth/azure/other", "help=1"))[0] == 404


async def test_stored_field_without_effect_causes_a_warning(vault: Vault) -> None:
    answer = await vault.send(vault.head("POST", "sys/known"), b'{"a": 1, "b": 2}')
    assert answer.headers["X-Steward-Warning"] == 'field "b" is stored but has no effect'
    for head in (vault.head("POST", "sys/known"), vault.head("GET", "sys/known", "b=1")):
        assert "X-Steward-Warning" not in (await vault.send(head, b'{"a": 1}')).headers


async def test_unknown_path_is_not_found(vault: Vault) -> None:
    text = 'no handler for route "auth/none/config". route entry not found.'
    assert await vault.call("GET", "auth/none/config") == (404, {"errors": [text]})
