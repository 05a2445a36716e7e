"""Policies of the Vault API, and the capabilities that they grant.

The behavior is Vault's (source: Vault's recorded responses `policy-crud`, `policy-evaluation`).
"""

import base64
import binascii

import msgspec

from daemon.acl.builtin import DEFAULT_RULES, RESERVED
from daemon.acl.grant import CapabilitySet
from daemon.acl.nomad_tokens import content_hash
from daemon.acl.path_rules import PathPermission
from daemon.acl.policy_rules import check
from daemon.acl.policy_store import put_policy
from daemon.api import vault_reads
from daemon.text.go_format import multi_error, quote
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage import garbage
from storage.errors import Invalid, Malformed, NotFound
from storage.queries import installation, policies, tokens
from storage.queries.pages import KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.acl import BUILT_IN, DEFAULT, ROOT, Policy
from storage.records.codec import encode
from storage.records.times import rfc3339
from storage.writer import Transaction

_NO_POLICY = -1  # the check-and-set version of a policy that does not exist


def _names(db: ReadSnapshot, span: KeyRange) -> list[str]:
    built_in = {name for name in BUILT_IN if name > span.after}
    names = sorted(built_in | {*policies.names(db, span)})
    return names if span.most < 0 else names[: span.most]


async def index(call: RouteCall) -> VaultBody:
    """List the names of all policies."""
    return await vault_reads.keys(call, _names)


async def list_policies_legacy(call: RouteCall) -> VaultBody:
    """List the names of all policies, in the legacy form."""
    return await vault_reads.keys(call, _names, names=("keys", "policies"))


async def read(call: RouteCall) -> VaultBody:
    """Show a policy."""
    return VaultBody(data=_shown(call, "policy"))


async def read_policy_legacy(call: RouteCall) -> VaultBody:
    """Show a policy, in the legacy form."""
    return VaultBody(data=_shown(call, "rules"))


def _shown(call: RouteCall, key: str) -> dict[str, object]:
    name = call["policy"].lower()
    if name == ROOT:
        return {"cas_required": False, "name": ROOT, key: "", "version": 0}
    policy = call.parts.store.read(lambda db: _current(db, name))
    if policy is None:
        raise NotFound("")
    return {
        "cas_required": policy.cas_required,
        "modified": rfc3339(policy.modified_at),
        "name": name,
        key: policy.rules,
        "version": policy.version,
    }


def _current(db: ReadSnapshot, name: str) -> Policy | None:
    """Return a policy, or None; `default` exists even if it is not stored."""
    policy = policies.find(db, name)
    if policy is None and name == DEFAULT:
        made_at = installation.created_at(db)
        return Policy(name=DEFAULT, rules=DEFAULT_RULES, modified_at=made_at)
    return policy


async def write(call: RouteCall) -> VaultBody:
    """Create or change a policy. Its name is stored in lower case."""
    written_name, name = call["policy"], call["policy"].lower()
    if name in {ROOT, *RESERVED}:
        raise Invalid(f"cannot update {quote(name)} policy")
    warnings = [f"policy name was converted to {name}"] if written_name != name else []
    source = call.fields.text("policy")
    if not source and call.name.startswith("sys/policy/"):
        source = call.fields.text("rules")
        warnings.append("'rules' is deprecated, please use 'policy' instead")
    text = _decoded(source)
    if not text:
        raise Malformed("'policy' parameter not supplied or empty")
    try:
        await call.worked_out(len(text), lambda: check(text))
    except Malformed as error:
        raise Malformed(f"failed to parse policy: {error}") from None
    policy = Policy(
        name=name,
        rules=text,
        cas_required=call.fields.flag("cas_required"),
        modified_at=call.parts.clock.now(),
    )
    expected = None if call.fields.raw("cas") is None else call.fields.strict_number("cas")

    def put(tx: Transaction) -> None:
        before = _current(tx, name)
        _check_version(before, expected, required=policy.cas_required)
        put_policy(tx, _with_fields_of_jobs_api(policy, before))

    await call.parts.store.write(put)
    return VaultBody(warnings=warnings)


def _with_fields_of_jobs_api(policy: Policy, before: Policy | None) -> Policy:
    """Return a policy with the fields that only the jobs API can set, and with its hash."""
    description, job_acl = (before.description, before.job_acl) if before else ("", None)
    digest = content_hash(policy.name, description, policy.rules)
    return msgspec.structs.replace(policy, description=description, job_acl=job_acl, hash=digest)


def _check_version(before: Policy | None, expected: int | None, *, required: bool) -> None:
    """Raise `Malformed` unless the stored version is `expected`; -1 means that no policy is stored.

    If `expected` is None, raise `Malformed` when the caller or the policy requires a version.
    """
    if expected is None:
        if required or (before is not None and before.cas_required):
            raise Malformed("check-and-set parameter required for this call")
        return
    version = before.version if before is not None else _NO_POLICY
    if version != expected:
        shown = f"version {version}" if before is not None else f"no policy ({_NO_POLICY})"
        raise Malformed(
            "check-and-set parameter did not match the current version: "
            f"cas = {expected}, stored is {shown}"
        )


def _decoded(text: str) -> str:
    """Return a string, decoded if it is base64."""
    try:
        return base64.b64decode(text, validate=True).decode() or text
    except (binascii.Error, ValueError):
        return text


async def delete(call: RouteCall) -> VaultBody:
    """Delete a policy, if it exists."""
    name = call["policy"].lower()
    if name in {ROOT, *RESERVED}:
        raise Invalid(f"cannot delete {quote(name)} policy")
    if name == DEFAULT:
        raise Invalid("cannot delete default policy")
    existed = await call.parts.store.write(lambda tx: policies.remove(tx, name))
    call.note_deletion("policy", name, existed=existed)
    return VaultBody()


# --- capabilities -------------------------------------------------------------------------------


async def capabilities(call: RouteCall) -> VaultBody:
    """Return the capabilities of the token with a given secret, at the paths in the body."""
    secret = call.fields.text("token")
    grant = await call.parts.store.read_long(lambda db: _grant_of_secret(call, db, secret))
    return await _capabilities_at_paths(call, grant)


def _grant_of_secret(call: RouteCall, db: ReadSnapshot, secret: str) -> CapabilitySet:
    token = call.parts.tokens.find(db, secret) if secret else None
    if token is None:
        raise Malformed(multi_error(["invalid token"]) if secret else "missing token")
    return call.parts.tokens.caller(db, token).grant


async def capabilities_self(call: RouteCall) -> VaultBody:
    """Return the capabilities of the caller, at the paths in the body."""
    return await _capabilities_at_paths(call, call.caller.grant)


async def capabilities_accessor(call: RouteCall) -> VaultBody:
    """Return the capabilities of the token with a given accessor, at the paths in the body."""
    accessor = call.fields.text("accessor")

    def find(db: ReadSnapshot) -> CapabilitySet:
        token = tokens.find(db, accessor) if accessor else None
        if token is None:
            raise Malformed(multi_error(["invalid accessor"]) if accessor else "missing accessor")
        return call.parts.tokens.caller(db, token).grant

    return await _capabilities_at_paths(call, await call.parts.store.read_long(find))


def _paths(call: RouteCall) -> list[str]:
    paths = call.fields.texts("paths") or call.fields.texts("path")
    if not paths:
        raise Malformed("paths must be supplied")
    return paths


async def _capabilities_at_paths(call: RouteCall, grant: CapabilitySet) -> VaultBody:
    paths = _paths(call)

    def find() -> dict[str, object]:
        return {
            path: msgspec.Raw(encode(grant.capabilities(path.removeprefix("/")))) for path in paths
        }

    answer = await garbage.in_thread(find) if call.is_long else find()
    if len(paths) == 1:
        answer["capabilities"] = answer[paths[0]]
    return VaultBody(data=answer)


async def resultant_acl(call: RouteCall) -> VaultBody:
    """Return all capabilities of the caller, in the form that Vault's web interface uses."""
    grant = call.caller.grant
    if grant.everything:
        return VaultBody(data={"root": True})
    rules = grant.paths.rules()
    return VaultBody(
        data={
            "root": False,
            "exact_paths": {
                rule.path: _summary(rule) for rule in rules if not rule.path.endswith("*")
            },
            "glob_paths": {
                rule.path.removesuffix("*"): _summary(rule)
                for rule in rules
                if rule.path.endswith("*")
            },
        }
    )


def _summary(permission: PathPermission) -> dict[str, object]:
    return {"capabilities": sorted(permission.capabilities) or ["deny"]}
