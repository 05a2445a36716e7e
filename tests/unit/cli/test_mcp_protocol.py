"""Messages of the Model Context Protocol: both generations of clients, and bad input."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.cli.core.mcp_protocol import McpServer, Parameters, ToolOutput
from daemon.cli.core.mcp_tools import specs
from storage.errors import Malformed

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def echo(name: str, arguments: Parameters) -> ToolOutput:
    if "bad" in arguments:
        raise Malformed("bad is not known")
    return ToolOutput(f"{name} {json.dumps(arguments)}", is_error="fail" in arguments)


SERVER = McpServer(specs(writes=False), echo, "Begin with list_jobs.")


def ask(method: str, params: object = None, number: object = 1) -> Any:
    message = {"jsonrpc": "2.0", "id": number, "method": method}
    if params is not None:
        message["params"] = params
    answer = SERVER.answer(json.dumps(message).encode())
    assert answer is not None
    assert b"\n" not in answer
    found = json.loads(answer)
    assert (found["jsonrpc"], found["id"]) == ("2.0", number)
    return found.get("result", found.get("error"))


@pytest.mark.parametrize(
    ("asked", "answered"), [("2025-06-18", "2025-06-18"), ("2099-01-01", "2025-11-25")]
)
def test_an_older_client_agrees_on_a_revision(asked: str, answered: str) -> None:
    found = ask("initialize", {"protocolVersion": asked, "capabilities": {}, "clientInfo": {}})
    assert found["protocolVersion"] == answered
    assert found["capabilities"] == {"tools": {}}
    assert found["serverInfo"]["name"] == "steward"


def test_a_stateless_client_discovers_the_revision() -> None:
    found = ask("server/discover", {"_meta": MODERN})
    assert found["supportedVersions"] == ["2026-07-28"]
    assert (found["resultType"], found["ttlMs"], found["cacheScope"]) == ("complete", 0, "private")


def test_an_unknown_revision_is_refused_with_the_known_ones() -> None:
    meta = {**MODERN, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}
    found = ask("tools/list", {"_meta": meta})
    assert found["code"] == -32022
    assert found["data"] == {"supported": ["2026-07-28"], "requested": "2031-01-01"}


def test_tools_without_writes_only_read() -> None:
    tools = {tool["name"]: tool for tool in ask("tools/list")["tools"]}
    assert list(tools) == ["list_jobs", "job_status", "explain_job", "job_logs", "plan_job"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools.values())
    schema = tools["job_logs"]["inputSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["job"])
    assert schema["properties"]["lines"]["maximum"] == 200


def test_writes_add_tools_marked_as_writing() -> None:
    more = [spec for spec in specs(writes=True) if not spec.annotations["readOnlyHint"]]
    assert [spec.name for spec in more] == ["run_job", "stop_job", "dispatch_job"]


def test_a_tool_answers_with_text() -> None:
    found = ask("tools/call", {"name": "list_jobs", "arguments": {"prefix": "w"}, "_meta": MODERN})
    assert found["content"] == [{"type": "text", "text": 'list_jobs {"prefix": "w"}'}]
    assert (found["isError"], found["resultType"]) == (False, "complete")


@pytest.mark.parametrize("arguments", [{"fail": 1}, {"bad": 1}])
def test_tool_error_is_a_result_visible_to_the_assistant(arguments: Parameters) -> None:
    assert ask("tools/call", {"name": "list_jobs", "arguments": arguments})["isError"]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/erase", None, -32601),
        ("tools/call", {"name": "run_job"}, -32602),
        ("tools/call", {"name": ["run_job"]}, -32602),
        ("tools/call", {"name": "list_jobs", "arguments": [1]}, -32602),
        ("tools/call", {"name": "list_jobs", "arguments": []}, -32602),
        ("tools/call", {"name": "list_jobs", "arguments": ""}, -32602),
        ("tools/list", [], -32602),
    ],
)
def test_invalid_requests_get_the_error_code_of_the_protocol(
    method: str, params: object, code: int
) -> None:
    assert ask(method, params, "text")["code"] == code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
    ],
)
def test_invalid_lines_get_the_error_code_of_the_protocol(line: bytes, code: int) -> None:
    answer = json.loads(SERVER.answer(line) or b"{}")
    assert (answer["id"], answer["error"]["code"]) == (None, code)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (b'{"jsonrpc": "2.0", "id": 9}', 9),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', None),
    ],
)
def test_request_without_a_method_or_an_id_is_invalid(line: bytes, number: object) -> None:
    answer = json.loads(SERVER.answer(line) or b"{}")
    assert (answer["id"], answer["error"]["code"]) == (number, -32600)


def test_notifications_and_responses_get_no_answer() -> None:
    assert SERVER.answer(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}') is None
    assert SERVER.answer(b'{"jsonrpc": "2.0", "id": 3, "result": {}}') is None
    assert ask("ping") == {}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda integer: st.lists(integer) | st.dictionaries(st.text(), integer),
    )
)
def test_any_json_gets_a_response_or_none(value: object) -> None:
    for message in (value, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": value}):
        answer = SERVER.answer(json.dumps(message).encode())
        assert answer is None or json.loads(answer)["jsonrpc"] == "2.0"


# --- batches ---


def ping(number: int) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


def ask_batch(revision: str, batch: object) -> Any:
    server = McpServer(specs(writes=False), echo, "Begin with list_jobs.")
    handshake = {**ping(0), "method": "initialize", "params": {"protocolVersion": revision}}
    server.answer(json.dumps(handshake).encode())
    answer = server.answer(json.dumps(batch).encode())
    return None if answer is None else json.loads(answer)


def test_a_batch_is_answered_in_the_revision_that_has_batches() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    found = ask_batch("2025-03-26", [ping(1), note, 7, {**ping(2), "method": "no"}])
    assert [answer["id"] for answer in found] == [1, None, 2]
    assert found[0]["result"] == {}
    assert [answer["error"]["code"] for answer in found[1:]] == [-32600, -32601]


def test_a_batch_of_notifications_gets_no_answer() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert ask_batch("2025-03-26", [note]) is None


@pytest.mark.parametrize("length", [0, 101])
def test_an_empty_or_large_batch_is_refused(length: int) -> None:
    found = ask_batch("2025-03-26", [ping(number) for number in range(length)])
    assert found["error"]["code"] == -32600
    assert "from 1 to 100" in found["error"]["message"]


def test_the_handshake_cannot_be_part_of_a_batch() -> None:
    (found,) = ask_batch("2025-03-26", [{**ping(1), "method": "initialize"}])
    assert "cannot be part of a batch" in found["error"]["message"]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_batch_is_refused_in_revisions_without_batches(revision: str) -> None:
    assert ask_batch(revision, [ping(1)])["error"]["code"] == -32600
