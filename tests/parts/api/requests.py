"""Requests as handlers get them, from callers with given policies."""

from itertools import count
from typing import Any

import msgspec

from daemon.acl.audit import Audit
from daemon.acl.check import Caller, RequiredCapability
from daemon.acl.grant import CapabilitySet
from daemon.acl.keyring import Keyring
from daemon.acl.policy_rules import parse_policy
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.app.context import AppContext
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.identity.issuer import Issuer
from daemon.variables.task_secrets import OutputMatchers
from daemon.web.parameters import QueryParameters
from daemon.web.request import Request
from daemon.web.rights import RouteRights
from storage.records.acl import Token
from storage.store import Store
from tests.samples import NOW
from tests.task_logs import logs_below

SEAL = EnvelopeCipher({1: bytes(32)})
DEFAULTS = Settings()


class Clock:
    def now(self) -> int:
        return NOW


class Tasks:
    node_id = "node"

    def egress(self) -> tuple[bool, str]:
        return False, "open"

    def git_isolation(self) -> tuple[bool, str]:
        return False, "git runs with the daemon's rights"


def parts_of(store: Store, config: Settings = DEFAULTS, *, asks: bool = True) -> AppContext:
    """Return the parts of a daemon; `asks` is true if the daemon requires tokens."""
    clock: Any = Clock()
    door: Any = None  # no request here logs in
    notify: Any = None  # no request here tests a receiver
    ids = (f"id-{number}" for number in count())
    return AppContext(
        config=config,
        store=store,
        clock=clock,
        ids=ids,
        seal=SEAL,
        audit=Audit(store, clock, bytes(32)),
        issuer=Issuer(store, SEAL, clock, ids),
        tasks=Tasks(),
        logs=logs_below(config.alloc_dir),
        output=OutputMatchers(store, SEAL),
        tokens=TokenStore(store, clock, Keyring(bytes(32)), asks=asks),
        door=door,
        notify=notify,
        fences=Fences(clock),
        rights=lambda: RouteRights(ROUTES, ENDPOINTS),
    )


def caller(rules: str | None = None) -> Caller:
    """Return a caller with a policy of these rules; without rules, a caller with full access."""
    token = Token(accessor="someone", created_at=NOW)
    if rules is None:
        return Caller(token, CapabilitySet((), everything=True))
    return Caller(token, CapabilitySet([("theirs", parse_policy(rules))]))


def request(
    store: Store,
    needs: RequiredCapability,
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
        query=QueryParameters(query),
        body=b"" if body is None else msgspec.json.encode(body),
        token="",
        address="",
        caller=who,
        needs=needs,
    )
