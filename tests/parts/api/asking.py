"""Requests as handlers get them, from callers with given policies."""

from typing import Any

import msgspec

from daemon.acl.audit import Audit
from daemon.acl.check import Caller, Needs
from daemon.acl.grant import Grant
from daemon.acl.keyring import Keyring
from daemon.acl.policies import parse
from daemon.acl.seal import Seal
from daemon.acl.tokens import Tokens
from daemon.api.endpoints import ENDPOINTS
from daemon.api.routes import ROUTES
from daemon.config import Config
from daemon.fences import Fences
from daemon.identity.issuer import Issuer
from daemon.parts import Parts
from daemon.web.parameters import Query
from daemon.web.request import Request
from daemon.web.rights import Rights
from storage.records.acl import Token
from storage.store import Store
from tests.samples import NOW

SEAL = Seal({1: bytes(32)})
DEFAULTS = Config()


class Clock:
    def now(self) -> int:
        return NOW


class Tasks:
    node_id = "node"

    def egress(self) -> tuple[bool, str]:
        return False, "open"


def parts_of(store: Store, config: Config = DEFAULTS, *, asks: bool = True) -> Parts:
    """Return the parts of a daemon; `asks` says whether it asks for tokens."""
    clock: Any = Clock()
    door: Any = None  # no request here logs in
    ids = (f"id-{number}" for number in range(100))
    return Parts(
        config=config,
        store=store,
        clock=clock,
        ids=ids,
        seal=SEAL,
        audit=Audit(store, clock, bytes(32)),
        issuer=Issuer(store, SEAL, clock, ids),
        tasks=Tasks(),
        tokens=Tokens(store, clock, Keyring(bytes(32)), asks=asks),
        door=door,
        fences=Fences(clock),
        rights=Rights(ROUTES, ENDPOINTS),
    )


def caller(rules: str | None = None) -> Caller:
    """Return who has a policy of these rules; without one, who may do everything."""
    token = Token(accessor="someone", created_at=NOW)
    if rules is None:
        return Caller(token, Grant((), everything=True))
    return Caller(token, Grant([("theirs", parse(rules))]))


def request(
    store: Store,
    needs: Needs,
    who: Caller,
    *,
    query: str = "",
    body: object = None,
    **parameters: str,
) -> Request:
    return Request(
        parts=parts_of(store),
        method="GET",
        path="",
        parameters=parameters,
        query=Query(query),
        body=b"" if body is None else msgspec.json.encode(body),
        token="",
        address="",
        caller=who,
        needs=needs,
    )
