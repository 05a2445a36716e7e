"""Tokens of the secrets side for tasks: made by a role or with policies, as their jobs say.

Whoever submits such a job must be able to make the token himself. It names its allocation, and
nobody can use it any more when that has ended, whatever its time is.
"""

from collections.abc import Iterator

import msgspec

from daemon.acl.builtin import UNASKED
from daemon.acl.check import Caller
from daemon.acl.children import Made, Wanted, make, normal, renewed, terms_of
from daemon.acl.grant import Grant
from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.tokens import Tokens
from daemon.acl.workloads import applies
from daemon.clock import Clock
from daemon.fields import Fields
from storage.errors import Malformed, Refused
from storage.queries import policies, tokens
from storage.readers import Snapshot
from storage.records.acl import DEFAULT, ROOT, Token, TokenKind
from storage.records.task import SecretsConfig
from storage.records.workload import Workload
from storage.store import Store
from storage.writer import Transaction

PATH = "auth/token/create"
_SPAN = 3600  # seconds that a token lives until it is renewed, unless its role says otherwise
_MAKER = Caller(UNASKED, Grant((), everything=True))


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a task; times are nanoseconds. `secret` is known when it is made."""

    accessor: str
    secret: str = ""
    ttl: int  # with which it was made
    renewed_at: int
    expires_at: int


def refusal(db: Snapshot, caller: Caller, block: SecretsConfig) -> str:
    """Return why somebody may not submit a task with this wish; nothing when he may."""
    if block.role:
        if tokens.find_role(db, block.role) is None:
            return f'there is no role "{block.role}": write {PATH[:-6]}roles/{block.role} first'
        if _may(caller, f"{PATH}/{block.role}", "update"):
            return ""
        return f'the role "{block.role}" needs the capability update on {PATH}/{block.role}'
    wanted = set(named(block)) - {DEFAULT}
    if ROOT in wanted:
        return 'a task cannot have the policy "root"'
    if not wanted or caller.grant.everything or _may(caller, PATH, "sudo"):
        return ""
    lacking = sorted(wanted - set(normal(caller.token.policies)))
    return f'you do not have the policy "{lacking[0]}" yourself' if lacking else ""


def named(block: SecretsConfig) -> tuple[str, ...]:
    """Return the policies that a task asks for."""
    return normal(block.policies) if isinstance(block.policies, list) else ()


def _may(caller: Caller, path: str, capability: str) -> bool:
    if caller.grant.everything:
        return True
    permission = caller.grant.permission(path)
    return permission is not None and capability in permission.capabilities


class TaskTokens:
    """Makes and renews the tokens of tasks."""

    def __init__(self, store: Store, opened: Tokens, clock: Clock) -> None:
        self._store, self._tokens, self._clock = store, opened, clock

    async def make(self, workload: Workload, block: SecretsConfig) -> Held:
        """Return a new token for a task. Raises `Refused`."""
        accessor, secret, now = new_accessor(), new_secret(), self._clock.now()

        def write(tx: Transaction) -> Made:
            wanted = _wanted(tx, workload, block)
            made = make(tx, wanted, accessor=accessor, now=now)
            bound = msgspec.structs.replace(
                made.token,
                kind=TokenKind.SERVICE,
                allocation=workload.nomad_allocation_id,
            )
            if ROOT in bound.policies:
                raise Refused('a task cannot have the policy "root"')
            self._tokens.add(tx, bound, secret)
            return msgspec.structs.replace(made, token=bound)

        try:
            made = await self._store.write(write)
        except Malformed as error:
            raise Refused(str(error)) from error
        return _held(made.token, now, secret)

    async def renew(self, accessor: str) -> Held:
        """Let a token live on, as far as it may. Raises `Refused` when it has ended."""
        now = self._clock.now()

        def write(tx: Transaction) -> Held:
            token = self._find(tx, accessor)
            role = tokens.find_role(tx, token.role) if token.role else None
            after, _ = renewed(token, 0, terms_of(token, role), now)
            self._tokens.note_end(after.expires_at)
            return _held(tokens.update(tx, after), now)

        try:
            return await self._store.write(write)
        except Malformed as error:
            raise Refused(str(error)) from error

    def find(self, accessor: str) -> Held | None:
        """Return a token that was made before; None when it has ended."""
        try:
            token = self._store.read(lambda db: self._find(db, accessor))
        except Refused:
            return None
        return _held(token, token.renewed_at or token.created_at)

    def is_secret(self, accessor: str, secret: str) -> bool:
        """Tell whether this is the secret of a token that has not ended."""
        token = self._store.read(lambda db: self._tokens.find(db, secret))
        return token is not None and token.accessor == accessor

    async def end(self, accessor: str) -> None:
        """Let nobody use a token any more."""
        await self._store.write(lambda tx: tokens.remove(tx, accessor))

    def _find(self, db: Snapshot, accessor: str) -> Token:
        token = tokens.find(db, accessor)
        if token is None or token.has_ended(self._clock.now()):
            raise Refused("the token has ended or was revoked")
        return token


def _wanted(db: Snapshot, workload: Workload, block: SecretsConfig) -> Wanted:
    """Return the request that makes the token. Raises `Refused`."""
    role = tokens.find_role(db, block.role) if block.role else None
    if block.role and role is None:
        raise Refused(f'there is no role "{block.role}"')
    if role is not None and not role.allowed_policies:
        raise Refused(f'the role "{block.role}" has no allowed_policies')
    names = list(named(block))
    if role is None:
        names = [*names, DEFAULT, *_of_job(db, workload)]
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
        fields["period"] = _SPAN  # renewed for as long as the allocation runs
    elif not role.token_period:
        fields["ttl"] = _SPAN
    return Wanted(
        maker=_MAKER,
        fields=Fields(fields),
        path=f"{PATH}/{block.role}" if role else PATH,
        is_orphan=True,
        has_sudo=role is None,
        **({"role": role} if role else {}),
    )


def _of_job(db: Snapshot, workload: Workload) -> Iterator[str]:
    """Yield the policies that name the job of a task themselves."""
    for policy in policies.every(db, ""):
        if policy.job_acl is not None and applies(policy.job_acl, workload):
            yield policy.name


def _held(token: Token, at: int, secret: str = "") -> Held:
    ends: int | None = token.expires_at
    return Held(
        accessor=token.accessor,
        secret=secret,
        ttl=token.ttl or token.period,
        renewed_at=at,
        expires_at=at if ends is None else ends,
    )
