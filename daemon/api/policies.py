"""Policies, and what they allow, as the secrets side's clients ask (golden: policy-crud, -evaluation)."""

import base64
import binascii
from collections.abc import Sequence

from daemon.acl.builtin import DEFAULT_RULES
from daemon.acl.clients import digest
from daemon.acl.grant import Grant
from daemon.acl.named import put
from daemon.acl.paths import Permission
from daemon.acl.policies import check
from daemon.api import shown
from daemon.jobspec.gotext import multi_error
from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import Invalid, Malformed, NotFound
from storage.queries import installation, policies, tokens
from storage.readers import Snapshot
from storage.records.acl import BUILT_IN, DEFAULT, ROOT, Policy
from storage.records.times import rfc3339


def _names(db: Snapshot) -> list[str]:
    return sorted({*BUILT_IN, *(policy.name for policy in policies.every(db))})


async def index(call: Call) -> Answer:
    """List the names of all policies."""
    return await shown.keys(call, _names)


async def old_index(call: Call) -> Answer:
    """List the names of all policies, as it was done of old."""
    return await shown.one(call, lambda db: {"keys": (names := _names(db)), "policies": names})


async def read(call: Call) -> Answer:
    """Show a policy."""
    return Answer(data=_shown(call, "policy"))


async def old_read(call: Call) -> Answer:
    """Show a policy, as it was done of old."""
    return Answer(data=_shown(call, "rules"))


def _shown(call: Call, key: str) -> dict[str, object]:
    name = call["policy"].lower()
    if name == ROOT:
        return {"cas_required": False, "name": ROOT, key: "", "version": 0}
    found, made_at = call.parts.store.read(
        lambda db: (policies.find(db, name), installation.created_at(db))
    )
    if found is None and name == DEFAULT:
        found = Policy(name=DEFAULT, rules=DEFAULT_RULES, modified_at=made_at)
    if found is None:
        raise NotFound("")
    return {
        "cas_required": False,
        "modified": rfc3339(found.modified_at),
        "name": name,
        key: found.rules,
        "version": found.version,
    }


async def write(call: Call) -> Answer:
    """Make a policy, or change it. Its name is stored in lower case."""
    given, name = call["policy"], call["policy"].lower()
    if name == ROOT:
        raise Invalid('cannot update "root" policy')
    text = _decoded(call.fields.text("policy") or call.fields.text("rules"))
    if not text:
        raise Malformed("'policy' parameter not supplied or empty")
    try:
        check(text)
    except Malformed as error:
        raise Malformed(f"failed to parse policy: {error}") from None
    policy = Policy(
        name=name, rules=text, hash=digest(name, text), modified_at=call.parts.clock.now()
    )
    await call.parts.store.write(lambda tx: put(tx, policy))
    return Answer(warnings=[f"policy name was converted to {name}"] if given != name else [])


def _decoded(text: str) -> str:
    """Return a text that may have been sent as base64."""
    try:
        return base64.b64decode(text, validate=True).decode() or text
    except (binascii.Error, ValueError):
        return text


async def delete(call: Call) -> Answer:
    """Remove a policy, if it is there."""
    name = call["policy"].lower()
    if name == ROOT:
        raise Invalid('cannot delete "root" policy')
    if name == DEFAULT:
        raise Invalid("cannot delete default policy")
    await call.parts.store.write(lambda tx: policies.remove(tx, name))
    return Answer()


# ---- what is allowed -------------------------------------------------------------------------


async def capabilities(call: Call) -> Answer:
    """Tell what the holder of a secret may do at some paths."""
    secret = call.fields.text("token")
    grant = call.parts.store.read(lambda db: _grant_of_secret(call, db, secret))
    return _at(grant, _paths(call))


def _grant_of_secret(call: Call, db: Snapshot, secret: str) -> Grant:
    token = call.parts.tokens.find(db, secret) if secret else None
    if token is None:
        raise Malformed(multi_error(["invalid token"]) if secret else "missing token")
    return call.parts.tokens.caller(db, token).grant


async def capabilities_self(call: Call) -> Answer:
    """Tell what the caller may do at some paths."""
    return _at(call.caller.grant, _paths(call))


async def capabilities_accessor(call: Call) -> Answer:
    """Tell what the holder of a token may do at some paths, by its accessor."""
    accessor = call.fields.text("accessor")

    def find(db: Snapshot) -> Grant:
        token = tokens.find(db, accessor) if accessor else None
        if token is None:
            raise Malformed(multi_error(["invalid accessor"]) if accessor else "missing accessor")
        return call.parts.tokens.caller(db, token).grant

    return _at(call.parts.store.read(find), _paths(call))


def _paths(call: Call) -> list[str]:
    paths = call.fields.texts("paths") or call.fields.texts("path")
    if not paths:
        raise Malformed("paths must be supplied")
    return paths


def _at(grant: Grant, paths: Sequence[str]) -> Answer:
    found: dict[str, object] = {path: grant.capabilities(path.removeprefix("/")) for path in paths}
    if len(paths) == 1:
        found["capabilities"] = found[paths[0]]
    return Answer(data=found)


async def resultant(call: Call) -> Answer:
    """Tell everything that the caller may do, for the web interface."""
    grant = call.caller.grant
    if grant.everything:
        return Answer(data={"root": True})
    every = grant.paths.every()
    return Answer(
        data={
            "root": False,
            "exact_paths": {one.path: _summary(one) for one in every if not one.path.endswith("*")},
            "glob_paths": {
                one.path.removesuffix("*"): _summary(one) for one in every if one.path.endswith("*")
            },
        }
    )


def _summary(permission: Permission) -> dict[str, object]:
    return {"capabilities": sorted(permission.capabilities) or ["deny"]}
