"""Responses of the Vault API: a streamed response equals the response in one body."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from daemon.web.reply import HandlerReply
from daemon.web.vault_envelope import VaultBody, enveloped, errors, listed, of_error, plain
from storage.errors import (
    Conflict,
    Denied,
    Invalid,
    LoginRefused,
    Malformed,
    NotFound,
    Refused,
    StewardError,
    StorageError,
    StorageFull,
    TooLarge,
    TooOften,
    Unavailable,
    UnknownToken,
)
from storage.records.codec import encode

ONE = "1 error occurred:\n\t* {}\n\n"
PATHS = ("sys/auth", "sys/policies/acl", "auth/token/accessors", "sys/wrapping/lookup")


async def members(data: Mapping[str, object], size: int) -> AsyncGenerator[bytes, None]:
    """Yield the members of an object as JSON, in chunks of this size."""
    text = encode(data)[1:-1]
    for start in range(0, len(text), size):
        yield text[start : start + size]


async def whole(reply: HandlerReply) -> Any:
    assert reply.stream is not None
    return msgspec.json.decode(b"".join([chunk async for chunk in reply.stream]))


@given(
    data=st.dictionaries(st.text(), st.integers(-5, 5) | st.text(), min_size=1, max_size=4),
    path=st.sampled_from(PATHS),
    warnings=st.lists(st.text(), max_size=2),
    size=st.integers(1, 20),
)
def test_streamed_response_equals_the_response_in_one_body(
    data: dict[str, object], path: str, warnings: list[str], size: int
) -> None:
    short = VaultBody(data=data, warnings=warnings)
    long = VaultBody(members=members(data, size), warnings=warnings)
    in_one_body = enveloped(short, path=path, request_id="id")
    streamed = enveloped(long, path=path, request_id="id")
    assert trio.run(whole, streamed) == msgspec.json.decode(encode(in_one_body.body))
    assert streamed.headers == in_one_body.headers


@pytest.mark.parametrize(
    ("path", "is_repeated"),
    [
        ("sys/auth", True),
        ("sys/policies/acl", False),
        ("identity/entity/id", False),
        ("auth/token/lookup", False),
    ],
)
def test_older_endpoints_repeat_their_data_at_the_top_level(path: str, is_repeated: bool) -> None:
    reply = enveloped(VaultBody(data={"key": 1}), path=path, request_id="id")
    body = msgspec.json.decode(encode(reply.body))
    assert body["data"] == {"key": 1}
    assert ("key" in body) is is_repeated
    assert {name: value for name, value in body.items() if name not in ("key", "data")} == {
        "request_id": "id",
        "lease_id": "",
        "renewable": False,
        "lease_duration": 0,
        "wrap_info": None,
        "warnings": None,
        "auth": None,
    }


@pytest.mark.parametrize(
    ("body", "is_empty"),
    [
        (VaultBody(), True),
        (VaultBody(data={}), False),
        (VaultBody(auth={"client_token": "t"}), False),
        (VaultBody(wrap_info={"token": "t"}), False),
        (VaultBody(warnings=["w"]), False),
        (VaultBody(members=members({}, 1)), False),
        (VaultBody(data={}, auth={"client_token": "t"}), False),
    ],
)
def test_only_an_empty_result_is_sent_without_a_body(body: VaultBody, is_empty: bool) -> None:
    assert body.is_empty is is_empty
    reply = enveloped(body, path="", request_id="")
    has_content = reply.body is not None or reply.stream is not None
    assert (reply.status, has_content) == ((204, False) if is_empty else (200, True))


def test_responses_may_not_be_stored_by_caches() -> None:
    for reply in (
        enveloped(VaultBody(), path="", request_id=""),
        enveloped(VaultBody(data={}), path="", request_id=""),
        plain({}),
        errors(404, "none"),
        of_error(Denied(), is_login=False),
    ):
        assert reply.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("error", "is_login", "status", "text"),
    [
        (Malformed("no"), False, 400, "no"),
        (Invalid("no"), False, 400, "no"),
        (TooLarge("no"), False, 413, "no"),
        (TooOften("no"), False, 429, "no"),
        (NotFound("no"), False, 404, "no"),
        (Denied(), False, 403, ONE.format("permission denied")),
        (Denied(), True, 403, "permission denied"),
        (UnknownToken("detail"), False, 403, "permission denied"),
        (Refused("no"), False, 500, ONE.format("no")),
        (Conflict("no"), False, 500, ONE.format("no")),
        (Refused("no"), True, 500, "no"),
        (LoginRefused("no", "detail"), True, 500, "no"),
        (Unavailable("no"), False, 503, "no"),
        (StorageFull("no"), False, 507, "no"),
        (StorageError("no"), False, 503, "no"),
        (StewardError("no"), False, 500, "no"),
    ],
)
def test_each_error_has_a_status_and_a_text(
    error: StewardError, is_login: bool, status: int, text: str
) -> None:
    reply = of_error(error, is_login=is_login)
    assert (reply.status, reply.body) == (status, {"errors": (text,)})


def test_error_without_a_text_is_an_empty_list() -> None:
    assert of_error(NotFound(""), is_login=False).body == {"errors": ()}


def test_error_response_says_when_to_retry() -> None:
    reply = of_error(TooOften("slow down", retry_after=7), is_login=False)
    assert reply.headers["Retry-After"] == "7"
    assert reply.headers["Content-Type"] == "application/json"


def test_listed_error_is_an_error_response() -> None:
    assert listed(405, "unsupported operation") == errors(405, ONE.format("unsupported operation"))
