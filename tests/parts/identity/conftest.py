"""A cloud on loopback, a clock that is set by hand, and login methods that use both."""

import copy
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import trio

from daemon.acl.keyring import Keyring
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore
from daemon.config.settings import Settings
from daemon.identity import mounts, roles
from daemon.identity.issuer import Issuer
from daemon.identity.login_request import LoginRequest
from daemon.identity.methods import LoginMethods, LoginResult, open_methods
from daemon.text.request_fields import RequestFields
from storage.records.base import SECOND
from storage.records.identity import Mount
from storage.store import Store
from tests.fakes.fakecloud import (
    DEFAULT_WORLD,
    SUB_A,
    TENANT,
    Authority,
    FakeCloud,
    FaultRule,
    Server,
)

RESOURCE = "api://steward-login"
APPLICATION = "c1000000-0000-4000-8000-000000000001"
PRINCIPAL = "c1000000-0000-4000-8000-0000000000bb"
MACHINE = f"/subscriptions/{SUB_A}/resourceGroups/rg-one/providers/Microsoft.Compute/virtualMachines/vm-sys"


class Clock:
    """The system clock, advanced by the test."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> int:
        import time

        return time.time_ns() + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += int(seconds * SECOND)


class Cloud:
    """A cloud in the test's own loop: its recorded requests, and its configured failures."""

    def __init__(self) -> None:
        self.fake = FakeCloud(copy.deepcopy(DEFAULT_WORLD), Authority())
        self.url = ""

    def asked(self, service: str = "", path: str = "") -> list[str]:
        """Return the requested paths."""
        return [
            item["path"]
            for item in self.fake.log
            if item["service"].startswith(service) and path in item["path"]
        ]

    def fail(self, **rule: Any) -> None:
        self.fake.faults.append(FaultRule(id=str(len(self.fake.faults)), **rule))

    def heal(self) -> None:
        self.fake.faults.clear()

    def mint(self, **spec: Any) -> str:
        token: str = self.fake.mint({"app": APPLICATION, "audience": RESOURCE, **spec})[
            "access_token"
        ]
        return token

    def mint_machine(self, **spec: Any) -> str:
        token: str = self.fake.mint({"resource_id": MACHINE, "audience": RESOURCE, **spec})[
            "access_token"
        ]
        return token


DAMAGES = [b'{"pa', b"\xff{}", b"", b"[]"]  # contents of a row after damage


def damage(store: Store, path: str, left: bytes) -> None:
    """Replace the document of a mount by a damaged one."""
    with closing(sqlite3.connect(store.path)) as other, other:
        other.execute("UPDATE mounts SET document = CAST(? AS TEXT) WHERE path = ?", (left, path))


class Login:
    """Login methods with one mount, ready for logins."""

    def __init__(
        self, methods: LoginMethods, store: Store, tokens: TokenStore, mount: Mount
    ) -> None:
        self.methods, self.store, self.tokens, self.mount = methods, store, tokens, mount

    async def configure(self, **fields: object) -> list[str]:
        given = {
            "tenant_id": TENANT,
            "resource": RESOURCE,
            "client_id": APPLICATION,
            "client_secret": "fake-client-secret-1",
            "max_retries": 0,
            **fields,
        }
        return await self.methods.configure(self.mount, RequestFields(given))

    async def role(self, name: str = "dev", **fields: object) -> None:
        await roles.write(self.store, self.mount, name, RequestFields(fields))

    async def log_in(self, jwt: str, role: str = "dev", **fields: str) -> LoginResult:
        request = LoginRequest(role=role, jwt=jwt, **fields)
        return await self.methods.login(self.mount, request, "127.0.0.1")

    async def log_in_machine(self, jwt: str, role: str = "vm") -> LoginResult:
        where = {"subscription_id": SUB_A, "resource_group_name": "rg-one", "vm_name": "vm-sys"}
        return await self.log_in(jwt, role, **where)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    one = Cloud()
    serve = partial(trio.serve_tcp, Server(one.fake, proxy=False).plain, 0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve)
        one.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield one
        nursery.cancel_scope.cancel()


@pytest.fixture
def config(cloud: Cloud, tmp_path: Path) -> Settings:
    urls = {
        f"cloud_{name}_url": cloud.url
        for name in ("directory", "resource_manager", "graph", "metadata")
    }
    return msgspec.structs.replace(Settings(data_dir=tmp_path), **urls)


@pytest.fixture
async def login(
    store: Store, clock: Clock, config: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Login]:
    for name in ("CLIENT_SECRET", "TENANT_ID", "CLIENT_ID", "AD_RESOURCE"):
        monkeypatch.delenv(f"AZURE_{name}", raising=False)
    seal = EnvelopeCipher({1: bytes(32)})
    tokens = TokenStore(store, clock, Keyring(bytes(32)), asks=True)
    ids = iter(lambda: str(uuid4()), "")
    issuer = Issuer(store, seal, clock, ids)
    async with open_methods(store, clock, seal, tokens, issuer, ids, config) as methods:
        mount = mounts.new_mount("cloudid/", RequestFields({"type": "cloudid"}), next(ids))
        await mounts.enable(store, mount)
        one = Login(methods, store, tokens, mount)
        await one.configure()
        await one.role("dev", bound_service_principal_ids=PRINCIPAL)
        await one.role(
            "vm",
            bound_service_principal_ids="0b000000-0000-4000-8000-000000000001",
            bound_subscription_ids=SUB_A,
        )
        yield one
