"""Vault tokens for tasks. For each task, the job requests a role or a list of policies.

The job's author must be allowed to create such a token. The token belongs to an allocation, and
becomes invalid when the allocation ends.
"""

from typing import TYPE_CHECKING

import msgspec

from daemon.acl.builtin import UNASKED, normalize_policy_names
from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet
from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.tokens import TokenStore
from daemon.acl.workload_identity import policies_of_task
from daemon.clock import Clock
from daemon.text.request_fields import RequestFields
from storage.errors import Malformed, Refused
from storage.queries import tokens
from storage.read_pool import ReadSnapshot
from storage.records.acl import DEFAULT, ROOT, Token, TokenKind
from storage.records.task import SecretsConfig
from storage.records.workload import Workload
from storage.store import Store
from storage.writer import Transaction

if TYPE_CHECKING:
    from daemon.acl.token_requests import NewToken, TokenRequestFields

PATH = "auth/token/create"
_SPAN = 3600  # TTL in seconds, unless the role sets another TTL
_MAKER = Caller(UNASKED, CapabilitySet((), everything=True))


class VaultTaskToken(msgspec.Struct, frozen=True, kw_only=True):
    """A Vault token of a task; times are in nanoseconds. Only a new token has its `secret`."""

    accessor: str
    secret: str = ""
    ttl: int  # seconds, at the creation
    renewed_at: int
    expires_at: int


def why_refused(db: ReadSnapshot, caller: Caller, block: SecretsConfig) -> str:
    """Return why the caller may not submit a task with this block; empty if the caller may."""
    if block.role:
        if tokens.find_role(db, block.role) is None:
            return f'there is no role "{block.role}": write {PATH[:-6]}roles/{block.role} first'
        if _may(caller, f"{PATH}/{block.role}", "update"):
            return ""
        return f'the role "{block.role}" needs the capability update on {PATH}/{block.role}'
    policies_asked = set(named_policies(block)) - {DEFAULT}
    if ROOT in policies_asked:
        return 'a task cannot have the policy "root"'
    if not policies_asked or caller.grant.everything or _may(caller, PATH, "sudo"):
        return ""
    lacking = sorted(policies_asked - set(normalize_policy_names(caller.token.policies)))
    return f'you do not have the policy "{lacking[0]}" yourself' if lacking else ""


def named_policies(block: SecretsConfig) -> tuple[str, ...]:
    """Return the policies that a task requests."""
    return normalize_policy_names(block.policies) if isinstance(block.policies, list) else ()


def _may(caller: Caller, path: str, capability: str) -> bool:
    if caller.grant.everything:
        return True
    permission = caller.grant.permission(path)
    return permission is not None and capability in permission.capabilities


class TaskTokens:
    """Creation and renewal of task tokens."""

    def __init__(self, store: Store, opened: TokenStore, clock: Clock) -> None:
        self._store, self._tokens, self._clock = store, opened, clock

    async def make(self, workload: Workload, block: SecretsConfig) -> VaultTaskToken:
        """Create a token for a task. Raises `Refused`."""
        # Imported late, as in the other functions: few tasks need a token.
        from daemon.acl.token_requests import create_token

        accessor, secret, now = new_accessor(), new_secret(), self._clock.now()

        def write(tx: Transaction) -> "NewToken":
            token_request = _token_request(tx, workload, block)
            new_token = create_token(tx, token_request, accessor=accessor, now=now)
            bound = msgspec.structs.replace(
                new_token.token,
                kind=TokenKind.SERVICE,
                allocation=workload.nomad_allocation_id,
            )
            if ROOT in bound.policies:
                raise Refused('a task cannot have the policy "root"')
            self._tokens.add(tx, bound, secret)
            return msgspec.structs.replace(new_token, token=bound)

        try:
            created = await self._store.write(write)
        except Malformed as error:
            raise Refused(str(error)) from error
        return _held(created.token, now, secret)

    async def renew(self, accessor: str) -> VaultTaskToken:
        """Renew a token as far as its limits allow. Raises `Refused` if it is invalid."""
        from daemon.acl.token_requests import renew_token, renewal_limits

        now = self._clock.now()

        def write(tx: Transaction) -> VaultTaskToken:
            token = self._read_token(tx, accessor)
            role = tokens.find_role(tx, token.role) if token.role else None
            after, _ = renew_token(token, 0, renewal_limits(token, role), now)
            self._tokens.schedule_expiry(after.expires_at)
            return _held(tokens.update(tx, after), now)

        try:
            return await self._store.write(write)
        except Malformed as error:
            raise Refused(str(error)) from error

    def find(self, accessor: str) -> VaultTaskToken | None:
        """Return a token that was created earlier, without its secret; None if it is invalid."""
        try:
            token = self._store.read(lambda db: self._read_token(db, accessor))
        except Refused:
            return None
        return _held(token, token.renewed_at or token.created_at)

    def is_secret(self, accessor: str, secret: str) -> bool:
        """Return whether `secret` belongs to the valid token with this accessor."""
        token = self._store.read(lambda db: self._tokens.find(db, secret))
        return token is not None and token.accessor == accessor

    async def end(self, accessor: str) -> None:
        """Revoke a token."""
        await self._store.write(lambda tx: tokens.remove(tx, accessor))

    def _read_token(self, db: ReadSnapshot, accessor: str) -> Token:
        token = tokens.find(db, accessor)
        if token is None or token.has_ended(self._clock.now()):
            raise Refused("the token has expired or was revoked")
        return token


def _token_request(
    db: ReadSnapshot, workload: Workload, block: SecretsConfig
) -> "TokenRequestFields":
    """Return the request for a task's token. Raises `Refused`."""
    from daemon.acl.token_requests import TokenRequestFields

    role = tokens.find_role(db, block.role) if block.role else None
    if block.role and role is None:
        raise Refused(f'there is no role "{block.role}"')
    if role is not None and not role.allowed_policies:
        raise Refused(f'the role "{block.role}" has no allowed_policies')
    names = list(named_policies(block))
    if role is None:
        names = [*names, DEFAULT, *(name for name, _ in policies_of_task(db, workload))]
    fields: dict[str, object] = {
        "policies": names,
        "renewable": True,
        "display_name": f"{workload.nomad_job_id}-{workload.nomad_task}",
        "meta": {
            "namespace": workload.nomad_namespace,
            "job": workload.nomad_job_id,
            "allocation": workload.nomad_allocation_id,
            "task": workload.nomad_task,
        },
    }
    if role is None:
        fields["period"] = _SPAN  # renewed while the allocation runs
    elif not role.token_period:
        fields["ttl"] = _SPAN
    return TokenRequestFields(
        maker=_MAKER,
        fields=RequestFields(fields),
        path=f"{PATH}/{block.role}" if role else PATH,
        is_orphan=True,
        has_sudo=role is None,
        **({"role": role} if role else {}),
    )


def _held(token: Token, time: int, secret: str = "") -> VaultTaskToken:
    ends: int | None = token.expires_at
    return VaultTaskToken(
        accessor=token.accessor,
        secret=secret,
        ttl=token.ttl or token.period,
        renewed_at=time,
        expires_at=time if ends is None else ends,
    )
