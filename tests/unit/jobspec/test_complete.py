"""Completing a parsed job; the corpus (tests/wire/test_job_files.py) shows what is filled in."""

import json
from pathlib import Path

import pytest

from daemon.jobs.register import JobRegisterRequest
from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.complete import complete
from storage.records.codec import Document, decode, encode, spell_job_twice
from storage.records.job import Job
from tests.unit.jobspec.hcl.build import parse

GOLDEN = Path(__file__).parents[2] / "wire/golden/hcl"
ACCEPTED = [
    path
    for path in sorted(GOLDEN.glob("*.hcl"))
    if json.loads(path.with_suffix(".response.json").read_text())["status"] == 200
    and path.stem != "affinity-weight-range"  # refused on purpose
]


def registered(document: Document) -> Job:
    body = decode(JobRegisterRequest, encode({"Job": document}))
    assert body.job is not None
    return canonicalize(body.job)


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_registration_is_equal_whether_client_or_server_sets_defaults(path: Path) -> None:
    text = path.read_bytes().decode()
    request = json.loads(path.with_suffix(".request.json").read_text())
    variables = request.get("Variables", "")
    given = parse(text, variables=variables)
    completed = complete(parse(text, variables=variables))
    assert registered(completed) == registered(given)
    assert registered(spell_job_twice(completed)) == registered(given)


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_complete_job_needs_no_defaults(path: Path) -> None:
    request = json.loads(path.with_suffix(".request.json").read_text())
    once = complete(parse(path.read_bytes().decode(), variables=request.get("Variables", "")))
    assert complete(json.loads(encode(once))) == json.loads(encode(once))


def test_gateway_has_a_default_connect_timeout_and_protocol() -> None:
    job = complete(
        parse(
            'job "x" {\n group "g" {\n service {\n connect {\n gateway {\n proxy {}\n'
            " ingress {\n listener {\n port = 80\n }\n }\n }\n }\n }\n }\n}\n"
        )
    )
    gateway = job["TaskGroups"][0]["Services"][0]["Connect"]["Gateway"]
    assert gateway["Proxy"]["ConnectTimeout"] == 5_000_000_000
    assert gateway["Ingress"]["Listeners"][0]["Protocol"] == "tcp"
