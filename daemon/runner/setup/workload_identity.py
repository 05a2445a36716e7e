"""Sign the workload identity tokens of a task, deliver them, and renew them before expiry.

A task gets a token in a file that only its user can read, or in its environment. A token is renewed
at half of its lifetime, and the task is notified as the job configures. After a daemon restart, the
renewal time of a token in a file follows from the token. For a token in the environment, it follows
from the start time of the task. A note has the identities whose change actions are pending.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Protocol
from uuid import uuid4

import msgspec

from daemon.runner.core.task_env import resolve
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.setup.change_actions import ChangeAction, PendingActions
from daemon.runner.setup.given_secrets import GivenSecrets
from storage.errors import Refused
from storage.records.allocation import Allocation
from storage.records.base import HOUR, SECOND
from storage.records.job import Job
from storage.records.task import Identity, Service, Task
from storage.records.workload import Workload

DEFAULT = "default"
LONGEST = 30 * 24 * HOUR  # retired signing keys stay published for this time
_ACTIONS = ("restart", "signal")  # change modes with an action
_MAX_FILE = 16 * 1024  # bytes; longer than any token


class IdentitySigner(Protocol):
    """Signs workload identity tokens."""

    def sign(self, claims: Mapping[str, object], key_id: str = "") -> str:
        """Sign claims and return the token."""
        ...


class IssuerInfo(msgspec.Struct, frozen=True):
    """The issuer of the tokens, and its region.

    `claims` are additional claims by name. The text of a claim can contain references to the node,
    job, group, task and allocation. `values` has the values of the references to the node.
    """

    issuer: str
    region: str
    claims: Mapping[str, str] = {}
    values: Mapping[str, str] = {}


class TokenTimes(msgspec.Struct, frozen=True):
    """Issue and expiry time of a token in seconds."""

    iat: int
    exp: int


class WorkloadIdentities:
    """Delivers and renews the identity tokens of one task."""

    def __init__(
        self,
        signer: IdentitySigner,
        issuer: IssuerInfo,
        files: TaskFiles,
        task: Task,
        services: Sequence[Service] = (),
        secrets: GivenSecrets | None = None,
    ) -> None:
        """Manage the identities of the task and its `services`; add their tokens to `secrets`."""
        self._signer, self._issuer, self._files = signer, issuer, files
        self._task, self._services = task, services
        self._issue_times: dict[str, int] = {}  # identity -> issue time of its token, nanoseconds
        self.environment: dict[str, str] = {}
        self.secrets = secrets or GivenSecrets()
        self._pending = PendingActions(files, "renewed")
        self._renewed: set[str] = set()  # identities whose change actions are pending

    @property
    def identities(self) -> list[Identity]:
        """Return the identities of the task, including those of its services."""
        own = [self._task.identity] if self._task.identity else []
        own = [
            msgspec.structs.replace(identity, service_name="")
            for identity in [*own, *(self._task.identities or ())]
        ]
        return [
            identity
            for identity in [*own, *map(_of_service, self._services)]
            if identity.env or identity.file
        ]

    async def deliver(self, allocation: Allocation, job: Job, now: int) -> None:
        """Sign and deliver all tokens.

        Raises `Refused` for an unknown claim, and `PathEscape` or `OSError` if a file cannot be
        written.
        """
        if self.identities:
            await self.forget_actions()
        for identity in self.identities:
            await self._deliver(identity, allocation, job, now)

    async def _deliver(
        self, identity: Identity, allocation: Allocation, job: Job, now: int
    ) -> None:
        claims = claims_of(identity, allocation, job, self._task, self._issuer, now)
        # A token without expiry needs a key that exists as long as the allocation.
        key_id = "" if identity.ttl else allocation.placement.signing_key_id
        extra = extra_claims(identity, allocation, job, self._task, self._issuer)
        token = self._signer.sign({**extra, **msgspec.to_builtins(claims)}, key_id)
        self._issue_times[identity.name] = now
        self.secrets.add(f"identity {identity.name}", token)
        await self.secrets.store()
        if identity.env:
            self.environment[env_variable(identity)] = token
        if identity.file:
            await self._files.write(self._files.own(token_path(identity)), token.encode())

    async def recall(self, allocation: Allocation, job: Job, started: int, now: int) -> None:
        """Restore the issue times of the tokens that an earlier daemon delivered.

        Tokens in environment variables are signed again, for the environment of exec sessions.
        """
        pending = await self._pending.recall() if self.identities else set[int]()
        for number, identity in enumerate(self.identities):
            if number in pending:
                self._renewed.add(identity.name)
            times = (
                await self._times(identity) if identity.file else TokenTimes(started // SECOND, 0)
            )
            if times is None:
                await self._deliver(identity, allocation, job, now)
                continue
            self._issue_times[identity.name] = times.iat * SECOND
            if identity.env:
                environment_only = msgspec.structs.replace(identity, file=False)
                await self._deliver(environment_only, allocation, job, now)
                self._issue_times[identity.name] = times.iat * SECOND

    async def _times(self, identity: Identity) -> TokenTimes | None:
        """Return the times of the token in an identity's file; None if it cannot be read."""
        try:
            token = await self._files.read(self._files.own(token_path(identity)), _MAX_FILE)
            self.secrets.add(f"identity {identity.name}", token.decode(errors="replace"))
            payload = token.split(b".")[1]
            padded = payload + b"=" * (-len(payload) % 4)
            return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=TokenTimes)
        except (OSError, Refused, IndexError, ValueError, msgspec.DecodeError):
            return None

    def next_renewal(self) -> int | None:
        """Return the time of the next renewal in nanoseconds; None if no token must be renewed."""
        times = [due for _, due in self._renewals()]
        return min(times, default=None)

    async def renew(self, allocation: Allocation, job: Job, now: int) -> list[Identity]:
        """Renew all tokens that are due; return their identities.

        Raises the same errors as `deliver`.

        After an error, `pending_actions` includes the identities that were renewed before it.
        """
        due = {identity.name: identity for identity, time in self._renewals() if time <= now}
        acting = {name for name, identity in due.items() if identity.change_mode in _ACTIONS}
        if acting:
            await self._store_pending(self._renewed | acting)
        for identity in due.values():
            await self._deliver(identity, allocation, job, now)
            self._renewed |= acting & {identity.name}
        return [*due.values()]

    async def _store_pending(self, names: Set[str]) -> None:
        """Store which identities have a pending change action. Raises `OSError`."""
        await self._pending.store(
            number for number, identity in enumerate(self.identities) if identity.name in names
        )

    @property
    def pending_actions(self) -> list[ChangeAction]:
        """Return the change actions of the identities that were renewed since `forget_actions`."""
        return [
            ChangeAction(mode=identity.change_mode, signal=identity.change_signal)
            for identity in self.identities
            if identity.name in self._renewed
        ]

    async def forget_actions(self) -> None:
        """Forget the pending change actions, after they have run."""
        self._renewed.clear()
        await self._pending.forget()

    def _renewals(self) -> Iterator[tuple[Identity, int]]:
        for identity in self.identities:
            # A running process cannot get a new environment, only a restart delivers one.
            if identity.ttl and (identity.file or identity.change_mode == "restart"):
                yield identity, self._issue_times.get(identity.name, 0) + lifetime(identity) // 2


def claims_of(
    identity: Identity,
    allocation: Allocation,
    job: Job,
    task: Task,
    issuer: IssuerInfo,
    now: int,
) -> Workload:
    """Return the claims of a token for a task."""
    issued_at = now // SECOND
    job_id = job.parent_id or job.id
    names = (
        issuer.region,
        allocation.namespace,
        job_id,
        allocation.task_group,
        identity.service_name or task.name,
        identity.name,
    )
    return Workload(
        iss=issuer.issuer,
        sub=":".join(names),
        aud=identity.audience or [],
        iat=issued_at,
        nbf=issued_at,
        exp=issued_at + lifetime(identity) // SECOND if identity.ttl else None,
        jti=str(uuid4()),
        nomad_namespace=allocation.namespace,
        nomad_job_id=job_id,
        nomad_allocation_id=allocation.id,
        nomad_group=allocation.task_group,
        nomad_task="" if identity.service_name else task.name,
        nomad_service=identity.service_name,
    )


def extra_claims(
    identity: Identity, allocation: Allocation, job: Job, task: Task, issuer: IssuerInfo
) -> Mapping[str, str]:
    """Return the additional claims that an identity requests. Raises `Refused` for unknown ones."""
    values = {
        **issuer.values,
        "job.id": job.parent_id or job.id,
        "job.name": job.name,
        "job.type": job.type,
        "job.namespace": allocation.namespace,
        "job.region": issuer.region,
        "group.name": allocation.task_group,
        "task.name": task.name,
        "alloc.id": allocation.id,
        **{f"job.meta.{key}": value for key, value in (job.meta or {}).items()},
    }
    claims = {}
    for name in identity.extra_claims or ():
        if name not in issuer.claims:
            raise Refused(f"the setting identity_claims has no claim {name!r}")
        claims[name] = resolve(issuer.claims[name], {}, values)
    return claims


def _of_service(service: Service) -> Identity:
    """Return the identity of a service; without an identity block, an empty identity."""
    identity = service.identity or Identity()
    name = identity.name or f"service_{service.name}"
    return msgspec.structs.replace(identity, name=name, service_name=service.name)


def lifetime(identity: Identity) -> int:
    """Return the lifetime of a token in nanoseconds."""
    return min(identity.ttl, LONGEST)


def env_variable(identity: Identity) -> str:
    """Return the environment variable that holds a token."""
    if identity.name == DEFAULT:
        return "NOMAD_TOKEN"
    return (
        f"NOMAD_TOKEN_{identity.name.replace('-', '_') if identity.service_name else identity.name}"
    )


def token_path(identity: Identity) -> str:
    """Return the file that holds a token, relative to the task directory."""
    if identity.filepath:
        return identity.filepath
    name = "nomad_token" if identity.name == DEFAULT else f"nomad_{identity.name}.jwt"
    return f"secrets/{name}"
