"""Requests to a cloud that is slow, faulty, endless or redirecting."""

import logging
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest
import trio

from daemon.identity import cloud_http
from daemon.identity.cloud_http import MAX_ANSWER, CloudHttp, CloudUnreachable, RetryPolicy
from tests.parts.identity.conftest import Cloud

AT = "Sat, 21 Nov 2026 10:00:20 GMT"


@pytest.fixture
async def sender() -> AsyncIterator[CloudHttp]:
    opened = CloudHttp(lambda: 0.5)
    yield opened
    await opened.close()


async def answer_with(raw: bytes, stream: trio.SocketStream, *, hang: bool = False) -> None:
    await stream.receive_some(65536)
    await stream.send_all(raw)
    if hang:
        await trio.sleep_forever()
    await stream.aclose()


def test_answer_that_takes_long_to_decode_is_not_decoded() -> None:
    assert cloud_http.decoded(b'{"a":[1.5e300]}', dict[str, list[float]]) == {"a": [1.5e300]}
    slow = b'{"a":[' + b"1.5e300," * 5000 + b"1]}"
    assert cloud_http.decoded(slow, dict[str, list[float]]) is None


class _Answer(msgspec.Struct):
    name: str = "none"
    names: list[str] = []


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"name":null,"names":null,"other":null}', _Answer()),
        (b'{"name":"a","names":["b",null]}', _Answer("a", ["b"])),
        (b'{"name":"null","names":["null"]}', _Answer("null", ["null"])),
        (b"null", None),
        (b'{"name":null,"names":[1]}', None),
        (b'{"name":' + b"[" * 450 + b"null" + b"]" * 450 + b"}", None),
    ],
)
def test_null_stands_for_an_absent_value(body: bytes, answer: _Answer | None) -> None:
    assert cloud_http.decoded(body, _Answer) == answer


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_temporary_failure_is_retried(sender: CloudHttp, cloud: Cloud, status: int) -> None:
    cloud.fail(path="/one", status=status, times=2, headers={"Retry-After": "0"})
    answer = await sender.send("GET", f"{cloud.url}/one", retries=RetryPolicy(2, 0, 0))
    assert answer.status == 400
    assert len(cloud.asked(path="/one")) == 3


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": AT, "date": "Sat, 21 Nov 2026 10:00:00 GMT"}, 20),
        ({"retry-after": AT, "date": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "Sat, 21 Nov 2020 10:00:00 GMT"}, 0),
        ({"retry-after": AT, "date": "nonsense"}, None),
        *[({"retry-after": text}, None) for text in ("", "soon", "-1", "1e3", "9" * 30)],
        ({}, None),
    ],
)
def test_retry_after_is_in_seconds_or_a_date(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert cloud_http._retry_after(headers) == seconds


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 302])
async def test_persistent_error_is_not_retried(
    sender: CloudHttp, cloud: Cloud, status: int
) -> None:
    cloud.fail(path="/one", status=status, headers={"Location": f"{cloud.url}/two"})
    answer = await sender.send("GET", f"{cloud.url}/one", retries=RetryPolicy(3, 0, 0))
    assert answer.status == status
    assert len(cloud.asked()) == 1


async def test_broken_connection_is_retried(sender: CloudHttp, cloud: Cloud) -> None:
    cloud.fail(path="/one", close=True)
    with pytest.raises(CloudUnreachable, match=r'^Get "http://127.0.0.1:\d+/one": '):
        await sender.send("GET", f"{cloud.url}/one", retries=RetryPolicy(1, 0, 0))
    assert len(cloud.asked()) == 2


def test_retry_delays_grow_to_a_maximum_with_jitter() -> None:
    retries = RetryPolicy(5, 4, 60)
    assert [retries.pause(at, None, 0.4) for at in range(5)] == [4, 8, 16, 32, 60]
    assert retries.pause(0, None, 0.0) == pytest.approx(3.2)
    assert retries.pause(0, None, 1.0) == pytest.approx(5.2)
    assert retries.pause(0, 7.0, 0.4) == 7
    assert retries.pause(0, 1e9, 0.4) == 120


# The HTTP library does not close its generators. Trio closes them and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
async def test_endless_response_is_aborted(sender: CloudHttp) -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + b"x" * (MAX_ANSWER + 100_000)
    async with trio.open_nursery() as nursery:
        listener = await nursery.start(
            partial(trio.serve_tcp, partial(answer_with, body, hang=True), 0, host="127.0.0.1")
        )
        url = f"http://127.0.0.1:{listener[0].socket.getsockname()[1]}/"
        with pytest.raises(CloudUnreachable, match="the answer is larger than"):
            await sender.send("GET", url)
        nursery.cancel_scope.cancel()


async def test_unresponsive_cloud_is_aborted(
    sender: CloudHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_http, "ATTEMPT", 0.2)
    async with trio.open_nursery() as nursery:
        listener = await nursery.start(
            partial(
                trio.serve_tcp, partial(answer_with, b"HTTP/1.1 2", hang=True), 0, host="127.0.0.1"
            )
        )
        url = f"http://127.0.0.1:{listener[0].socket.getsockname()[1]}/"
        with pytest.raises(CloudUnreachable, match="no answer within"):
            await sender.send("GET", url)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
)
async def test_truncated_or_empty_response_is_reported(sender: CloudHttp, raw: bytes) -> None:
    async with trio.open_nursery() as nursery:
        listener = await nursery.start(
            partial(trio.serve_tcp, partial(answer_with, raw), 0, host="127.0.0.1")
        )
        url = f"http://127.0.0.1:{listener[0].socket.getsockname()[1]}/"
        with pytest.raises(CloudUnreachable):
            await sender.send("GET", url)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/", "http://", "http://[::1", "nonsense"),
        *("http://a..b/", f"http://{'a' * 64}.example/"),  # not valid as host names
    ],
)
async def test_invalid_address_is_reported(sender: CloudHttp, url: str) -> None:
    with pytest.raises(CloudUnreachable):
        await sender.send("GET", url)


async def test_request_log_contains_no_secrets(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "steward.identity.cloud")
    sender = CloudHttp(lambda: 0.5, verbose=True)
    form = {"client_id": "a", "client_secret": "hidden-1", "client_assertion": "hidden-2"}
    cloud.fail(path="/one", status=200, body={"access_token": 'a\\"hidden-3', "x": "shown"})
    await sender.send("POST", f"{cloud.url}/one", form=form)
    await sender.close()
    assert "hidden" not in caplog.text
    assert "client_id=a" in caplog.text
    assert "shown" in caplog.text


async def test_connections_are_reused(sender: CloudHttp, cloud: Cloud) -> None:
    for _ in range(3):
        await sender.send("GET", f"{cloud.url}/one")
    pool = sender._client._transport._pool
    assert len(pool.connections) == 1


async def test_refusal_has_the_text_of_the_azure_libraries(sender: CloudHttp, cloud: Cloud) -> None:
    cloud.fail(path="/one", status=403, body={"error": {"code": "No", "message": "not you"}})
    answer = await sender.send("GET", f"{cloud.url}/one?secret=1")
    ruler = "-" * 80
    assert answer.described() == (
        f"GET {cloud.url}/one\n{ruler}\nRESPONSE 403: 403 Forbidden\nERROR CODE: No\n{ruler}\n"
        '{\n  "error": {\n    "code": "No",\n    "message": "not you"\n  }\n}\n'
        f"{ruler}\n"
    )
