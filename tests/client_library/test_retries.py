"""Retries and renewals, with a fake server and a clock that jumps."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio
from steward_client import (
    BadRequest,
    Client,
    CloudLogin,
    Dispatch,
    DispatchesFailed,
    LoginFailed,
    Retry,
    Unreachable,
)

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, **options: object) -> Client:
    return Client(
        "http://server",
        transport=httpx.MockTransport(handler),
        chance=lambda: 1.0,
        ids=lambda: "made",
        **options,
    )


async def test_dispatch_is_repeated_with_its_token(autojump_clock: trio.abc.Clock) -> None:
    tokens: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        tokens.append(request.url.params["idempotency_token"])
        if len(tokens) < 3:
            raise httpx.ReadError("broken")
        return httpx.Response(200, json={"DispatchedJobID": "a/dispatch-1", "Index": 7})

    async with client(handler) as opened:
        child = await opened.dispatch("a")
    assert (child.job_id, child.index, tokens) == ("a/dispatch-1", 7, ["made"] * 3)
    assert trio.current_time() > 0.2


async def test_conditional_registration_is_not_repeated(autojump_clock: trio.abc.Clock) -> None:
    calls: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        raise httpx.ReadError("broken")

    async with client(handler) as opened:
        with pytest.raises(Unreachable, match="broken"):
            await opened.put_variable("a", {}, cas=3)
    assert calls == ["/v1/var/a"]


async def test_refused_connection_is_retried_until_the_limit(
    autojump_clock: trio.abc.Clock,
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with client(handler, retry=Retry(within=30)) as opened:
        with pytest.raises(Unreachable):
            await opened.put_variable("a", {}, cas=3)
    assert 20 < trio.current_time() <= 30


async def test_overloaded_server_sets_the_delay(autojump_clock: trio.abc.Clock) -> None:
    answers = [httpx.Response(429, headers={"Retry-After": "7"}), httpx.Response(200, json={})]

    async with client(lambda _: answers.pop(0)) as opened:
        await opened.request("POST", "/v1/jobs")
    assert trio.current_time() == pytest.approx(7)


async def test_client_error_is_not_retried(autojump_clock: trio.abc.Clock) -> None:
    async with client(lambda _: httpx.Response(400, text="wrong")) as opened:
        with pytest.raises(BadRequest, match=r"wrong \(status 400\)"):
            await opened.job("a")
    assert trio.current_time() == 0


class Authority:
    """A server whose tokens are valid for 30 seconds, and can be renewed for up to 100 seconds."""

    def __init__(self) -> None:
        self.issued: list[float] = []
        self.renewals = 0
        self.used: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        now = trio.current_time()
        if request.url.path == "/v1/auth/cloudid/login":
            assert json.loads(request.content) == {"role": "dev", "jwt": "signed"}
            self.issued.append(now)
        elif request.url.path == "/v1/auth/token/renew-self":
            self.renewals += 1
        else:
            self.used.append(request.headers["X-Nomad-Token"])
            return httpx.Response(200, json=[])
        auth = {
            "client_token": f"token-{len(self.issued)}",
            "lease_duration": min(30, int(self.issued[-1] + 100 - now)),
            "renewable": True,
        }
        return httpx.Response(200, json={"auth": auth})


async def test_token_is_renewed_and_replaced_near_its_final_expiry(
    autojump_clock: trio.abc.Clock,
) -> None:
    authority = Authority()
    login = CloudLogin(role="dev", jwt="signed")
    async with client(authority, login=login) as opened:
        await opened.jobs()
        await trio.sleep(60)
        await opened.jobs()
        await trio.sleep(60)
        await opened.jobs()
    assert authority.used == ["token-1", "token-1", "token-2"]
    assert authority.renewals >= 4


async def test_error_of_the_block_is_not_wrapped_by_the_renewal(
    autojump_clock: trio.abc.Clock,
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client(Authority(), login=CloudLogin(role="dev", jwt="signed")):
            1 / 0  # noqa: B018  # raises


async def test_login_is_retried_by_the_next_request(autojump_clock: trio.abc.Clock) -> None:
    authority = Authority()
    refusals = [httpx.Response(400, json={"errors": ["no such role"]})]

    def handler(request: httpx.Request) -> httpx.Response:
        return refusals.pop() if refusals else authority(request)

    async with client(handler, login=CloudLogin(role="dev", jwt="signed")) as opened:
        with pytest.raises(LoginFailed, match="no such role"):
            await opened.jobs()
        await opened.jobs()
    assert authority.used == ["token-1"]


class Children:
    """A server with bulk dispatch: one child for each token. Some responses are cut off."""

    def __init__(self, *, breaks_after: list[int]) -> None:
        self.children: dict[str, str] = {}
        self.sizes: list[int] = []
        self._breaks_after = breaks_after

    def __call__(self, request: httpx.Request) -> httpx.Response:
        lines = [json.loads(line) for line in request.content.splitlines()]
        self.sizes.append(len(lines))
        answered = self._breaks_after.pop(0) if self._breaks_after else len(lines)
        answers = [self._answer(number, line) for number, line in enumerate(lines, 1)]
        text = "".join(json.dumps(answer) + "\n" for answer in answers[:answered])
        return httpx.Response(200, text=text)

    def _answer(self, number: int, line: dict[str, str]) -> dict[str, object]:
        if "Payload" not in line:
            return {"Line": number, "Field": "Payload", "Error": "is required"}
        token = line["IdempotencyToken"]
        child = self.children.setdefault(token, f"a/dispatch-{len(self.children)}")
        return {"Line": number, "DispatchedJobID": child}


async def test_bulk_dispatch_repeats_only_unanswered_lines(
    autojump_clock: trio.abc.Clock,
) -> None:
    server = Children(breaks_after=[3, 2])
    requests = [Dispatch(payload=b"x", idempotency_token=f"t{n}") for n in range(10)]
    async with client(server) as opened:
        children = await opened.dispatch_many("a", requests)
    assert [child.job_id for child in children] == [server.children[f"t{n}"] for n in range(10)]
    assert server.sizes == [10, 7, 5]


async def test_bulk_dispatch_is_sent_in_parts(autojump_clock: trio.abc.Clock) -> None:
    server = Children(breaks_after=[])
    requests = [Dispatch(payload=b"x", idempotency_token=str(n)) for n in range(2500)]
    async with client(server) as opened:
        children = await opened.dispatch_many("a", requests)
    assert (server.sizes, len({child.job_id for child in children})) == ([1000, 1000, 500], 2500)


async def test_refused_lines_are_reported_with_the_children_of_accepted_lines(
    autojump_clock: trio.abc.Clock,
) -> None:
    requests = [Dispatch(payload=b"x"), Dispatch()]
    async with client(Children(breaks_after=[])) as opened:
        with pytest.raises(
            DispatchesFailed, match=r"1 of 2 .* number 1: Payload: is required"
        ) as e:
            await opened.dispatch_many("a", requests)
    assert (e.value.failures, [*e.value.children]) == ({1: "Payload: is required"}, [0])


async def test_server_without_bulk_dispatch_gets_single_dispatches(
    autojump_clock: trio.abc.Clock,
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/bulk"):
            return httpx.Response(400, text="Job must be specified")
        if not json.loads(request.content)["Payload"]:
            return httpx.Response(400, text="no payload")
        token = request.url.params["idempotency_token"]
        return httpx.Response(200, json={"DispatchedJobID": f"a/{token}"})

    good = [Dispatch(payload=b"x", idempotency_token=str(n)) for n in range(3)]
    async with client(handler) as opened:
        children = await opened.dispatch_many("a", good)
        with pytest.raises(DispatchesFailed, match="no payload"):
            await opened.dispatch_many("a", [Dispatch()])
    assert [child.job_id for child in children] == ["a/0", "a/1", "a/2"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:4646", "ftp://host", "http://", "unix://", "/run/x"]
)
def test_address_without_a_known_scheme_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not http://HOST:PORT, https://HOST:PORT or unix:///"):
        Client(address)


async def test_error_of_a_missing_socket_names_the_socket(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/missing.sock"
    async with Client(address, retry=Retry(within=0)) as opened:
        with pytest.raises(Unreachable, match=f"^{address}: "):
            await opened.jobs()
        with pytest.raises(Unreachable, match=f"^{address}: "):
            await opened.exec_run("a", ["ls"], task="t")
