"""A large body of the Vault API is parsed in a thread."""

import threading
from collections.abc import Mapping

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE
from daemon.api.vault_routes import ENDPOINTS
from daemon.web import vault_api
from daemon.web.request import SHORT
from daemon.web.vault_api import VaultApi
from storage.store import Store
from tests.parts.api.requests import caller, request


@pytest.mark.parametrize(("size", "in_thread"), [(10, False), (SHORT + 1, True)])
async def test_a_thread_reads_a_large_body(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int, *, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []
    parse = vault_api.parse

    def noted(body: bytes, kind: str) -> Mapping[str, object]:
        threads.append(threading.current_thread())
        return parse(body, kind)

    monkeypatch.setattr(vault_api, "parse", noted)
    asked = request(store, ANYONE, caller(), body={"paths": ["x" * size]})
    path = "/v1/sys/capabilities-self"
    asked = msgspec.structs.replace(asked, method="POST", path=path)
    side = VaultApi(asked.parts, ENDPOINTS)
    trail = asked.parts.audit.open_scope("POST", path, "", "")
    await trio.lowlevel.checkpoint()
    await side.answer(asked, {}, trail)
    assert [thread is not threading.current_thread() for thread in threads] == [in_thread]
