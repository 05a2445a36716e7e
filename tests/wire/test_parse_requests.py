"""Responses of the parse endpoint to unusual requests, compared with captured Nomad responses."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.wire.scenarios import daemon

CASES = json.loads((Path(__file__).parent / "golden/hcl/requests.json").read_text())["cases"]
JOB = 'job "x" {\n  nmae = "y"\n  type = "batch"\n  count = 1\n}\n'


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with daemon() as url:
        yield urlsplit(url).netloc


def ask(
    address: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def answer_to(address: str, case: dict[str, Any]) -> tuple[int, str, str]:
    written = case["body_text"]
    encoding = "latin-1" if "latin-1" in case.get("note", "") else "utf-8"
    body = None if written is None else written.encode(encoding)
    return ask(address, case["method"], case["path"], body, case["headers"])


def names(cases: list[dict[str, Any]]) -> list[str]:
    return [f"{case['method']} {case['path']} {str(case['body_text'])[:60]}" for case in cases]


PARSED = [case for case in CASES if "job_id" in case]
REFUSED = [case for case in CASES if case.get("status", 200) != 200]


@pytest.mark.parametrize("case", PARSED, ids=names(PARSED))
def test_request_is_parsed_like_in_nomad(address: str, case: dict[str, Any]) -> None:
    status, kind, text = answer_to(address, case)
    assert (status, kind) == (200, "application/json")
    assert json.loads(text)["ID"] == case["job_id"]
    assert ("\n    " in text) is case["pretty"]


@pytest.mark.parametrize("case", REFUSED, ids=names(REFUSED))
def test_request_is_refused_like_in_nomad(address: str, case: dict[str, Any]) -> None:
    status, kind, text = answer_to(address, case)
    assert (status, text) == (case["status"], case["body"])
    assert kind == case.get("content_type", kind)


def test_request_that_crashes_nomad_gets_an_error(address: str) -> None:
    assert ask(address, "POST", "/v1/jobs/parse", b"null", {})[0::2] == (400, "Job spec is empty")


def test_accept_header_adds_the_lines_of_errors(address: str) -> None:
    body = json.dumps({"JobHCL": JOB}).encode()
    plain = ask(address, "POST", "/v1/jobs/parse", body, {})
    explained = ask(address, "POST", "/v1/jobs/parse", body, {"Accept": "*/*"})
    assert plain[2].splitlines() == explained[2].splitlines()[0::3]
    assert explained[2].splitlines()[1:3] == ['  2 |   nmae = "y"', "    |   ^^^^"]


def test_large_file_is_parsed_like_a_small_one(address: str) -> None:
    large = "".join(f'group "g{number}" {{\n  count = {number}\n}}\n' for number in range(1000))
    body = json.dumps({"JobHCL": f'job "x" {{\n{large}}}\n'}).encode()
    status, _, text = ask(address, "POST", "/v1/jobs/parse", body, {})
    assert status == 200
    assert [group["Count"] for group in json.loads(text)["TaskGroups"]] == list(range(1000))
