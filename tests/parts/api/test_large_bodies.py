"""A large body is read in a thread, whatever route it is sent to."""

import ast
import threading
from pathlib import Path

import msgspec
import pytest

import daemon.api
from daemon.acl.check import KNOWN
from daemon.jobs.register import JobValidateRequest
from daemon.web import request as requests
from daemon.web.request import SHORT
from storage.records.codec import Document
from storage.store import Store
from tests.parts.api.asking import caller, request

FOLDER = Path(daemon.api.__file__).parent
MODULES = sorted(FOLDER.glob("**/*.py"))


@pytest.mark.parametrize(("size", "in_thread"), [(100, False), (SHORT + 1, True)])
async def test_a_thread_reads_a_large_body(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int, *, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []
    decode = requests.decode

    def noting(*arguments: object) -> object:
        threads.append(threading.current_thread())
        return decode(*arguments)  # type: ignore[arg-type, type-var]

    monkeypatch.setattr(requests, "decode", noting)
    job: Document = {"ID": "x" * size, "Nonsense": 1}
    asked = request(store, KNOWN, caller(), body={"Job": job})
    found = await asked.decoded(JobValidateRequest)
    assert found.job == {"ID": "x" * size}
    assert asked.remarks() == ['unknown field "Job.Nonsense" is ignored']
    assert (threads[0] is not threading.current_thread()) == in_thread


def _decodes_on_the_loop(module: Path) -> list[str]:
    return [
        f"{module.name}: {function.name}"
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "decode"
        if isinstance(node.value, ast.Name) and node.value.id == "request"
    ]


def test_no_handler_reads_its_body_on_the_loop() -> None:
    assert [one for module in MODULES for one in _decodes_on_the_loop(module)] == []


def test_the_rule_finds_such_a_handler(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("async def f(request):\n    request.decode(int)\n")
    assert _decodes_on_the_loop(module) == ["module.py: f"]


async def test_requests_of_one_client_are_known_by_token_or_address(store: Store) -> None:
    asked = request(store, KNOWN, caller())
    assert asked.client == "someone"
    nobody = msgspec.structs.replace(asked.caller.token, accessor="")
    unknown = msgspec.structs.replace(asked.caller, token=nobody)
    assert msgspec.structs.replace(asked, caller=unknown, address="::1").client == "::1"
