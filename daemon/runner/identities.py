"""The identity tokens of a task: signed for it, handed over, and signed anew before they end.

A token reaches a task in a file that only its user can read, or in its environment. One that
ends is replaced when half of its life has passed; the task is told of it as the job says. After
a restart of the daemon the files themselves say when that is; of what is in an environment, the
time of the start does.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol
from uuid import uuid4

import msgspec

from daemon.runner.env import resolve
from daemon.runner.taskfiles import TaskFiles
from storage.errors import Refused
from storage.records.allocation import Allocation
from storage.records.base import HOUR, SECOND
from storage.records.job import Job
from storage.records.task import Identity, Service, Task
from storage.records.workload import Workload

DEFAULT = "default"
LONGEST = 30 * 24 * HOUR  # so long the key that signed last is published
_MAX_FILE = 16 * 1024  # bytes; no token is longer


class Signer(Protocol):
    """What signs."""

    def sign(self, claims: Mapping[str, object], key_id: str = "") -> str:
        """Return claims as a signed token."""
        ...


class Place(msgspec.Struct, frozen=True):
    """Who signs, by the address that others know, and where.

    `claims` are those that an identity may ask for: their texts by name, with references to what
    `values` holds of the node, and to job, group, task and allocation.
    """

    issuer: str
    region: str
    claims: Mapping[str, str] = {}
    values: Mapping[str, str] = {}


class Times(msgspec.Struct, frozen=True):
    """When a token was made and when it ends, in seconds."""

    iat: int
    exp: int


class Identities:
    """The identities of one task, and the files in which it gets them."""

    def __init__(
        self,
        signer: Signer,
        place: Place,
        files: TaskFiles,
        task: Task,
        services: Sequence[Service] = (),
    ) -> None:
        """`services` are those of the task: their identities are handed to it."""
        self._signer, self._place, self._files = signer, place, files
        self._task, self._services = task, services
        self._made: dict[str, int] = {}  # identity -> when its token was made, nanoseconds
        self.environment: dict[str, str] = {}

    @property
    def wanted(self) -> list[Identity]:
        """Return the identities that the task is to have, its own and those of its services."""
        own = [self._task.identity] if self._task.identity else []
        own = [
            msgspec.structs.replace(one, service_name="")
            for one in [*own, *(self._task.identities or ())]
        ]
        return [one for one in [*own, *map(_of_service, self._services)] if one.env or one.file]

    async def hand_over(self, allocation: Allocation, job: Job, now: int) -> None:
        """Sign all of them.

        Raises `Refused` when one asks for a claim that there is not, `Escapes` or `OSError` when a
        file cannot be written.
        """
        for identity in self.wanted:
            await self._hand_over(identity, allocation, job, now)

    async def _hand_over(
        self, identity: Identity, allocation: Allocation, job: Job, now: int
    ) -> None:
        claims = claims_of(identity, allocation, job, self._task, self._place, now)
        # A token without an end is signed with the key that stays as long as the allocation.
        key_id = "" if identity.ttl else allocation.placement.signing_key_id
        extra = extra_claims(identity, allocation, job, self._task, self._place)
        token = self._signer.sign({**extra, **msgspec.to_builtins(claims)}, key_id)
        self._made[identity.name] = now
        if identity.env:
            self.environment[variable_of(identity)] = token
        if identity.file:
            await self._files.write(self._files.own(path_of(identity)), token.encode())

    async def recall(self, allocation: Allocation, job: Job, started: int, now: int) -> None:
        """Find out what an earlier daemon has handed over, and when.

        What a session inside the task gets in its environment is signed anew.
        """
        for identity in self.wanted:
            times = await self._times(identity) if identity.file else Times(started // SECOND, 0)
            if times is None:
                await self._hand_over(identity, allocation, job, now)
                continue
            self._made[identity.name] = times.iat * SECOND
            if identity.env:
                kept = msgspec.structs.replace(identity, file=False)
                await self._hand_over(kept, allocation, job, now)
                self._made[identity.name] = times.iat * SECOND

    async def _times(self, identity: Identity) -> Times | None:
        """Return the times of the token in an identity's file; None when it cannot be read."""
        try:
            found = await self._files.read(self._files.own(path_of(identity)), _MAX_FILE)
            payload = found.split(b".")[1]
            padded = payload + b"=" * (-len(payload) % 4)
            return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=Times)
        except (OSError, Refused, IndexError, ValueError, msgspec.DecodeError):
            return None

    def next_renewal(self) -> int | None:
        """Return when the next token is to be made, in nanoseconds; None: never."""
        times = [due for _, due in self._renewals()]
        return min(times, default=None)

    async def renew(self, allocation: Allocation, job: Job, now: int) -> list[Identity]:
        """Make the tokens that are due, and return the identities that have got a new one."""
        due = [identity for identity, time in self._renewals() if time <= now]
        for identity in due:
            await self._hand_over(identity, allocation, job, now)
        return due

    def _renewals(self) -> Iterator[tuple[Identity, int]]:
        for identity in self.wanted:
            # What is in an environment alone can only be replaced with the task.
            if identity.ttl and (identity.file or identity.change_mode == "restart"):
                yield identity, self._made.get(identity.name, 0) + lifetime(identity) // 2


def claims_of(
    identity: Identity,
    allocation: Allocation,
    job: Job,
    task: Task,
    place: Place,
    now: int,
) -> Workload:
    """Return what a token says of a task."""
    made = now // SECOND
    job_id = job.parent_id or job.id
    names = (
        place.region,
        allocation.namespace,
        job_id,
        allocation.task_group,
        identity.service_name or task.name,
        identity.name,
    )
    return Workload(
        iss=place.issuer,
        sub=":".join(names),
        aud=identity.audience or [],
        iat=made,
        nbf=made,
        exp=made + lifetime(identity) // SECOND if identity.ttl else None,
        jti=str(uuid4()),
        nomad_namespace=allocation.namespace,
        nomad_job_id=job_id,
        nomad_allocation_id=allocation.id,
        nomad_group=allocation.task_group,
        nomad_task="" if identity.service_name else task.name,
        nomad_service=identity.service_name,
    )


def extra_claims(
    identity: Identity, allocation: Allocation, job: Job, task: Task, place: Place
) -> Mapping[str, str]:
    """Return the further claims that an identity asks for. Raises `Refused` for one that is unknown."""
    values = {
        **place.values,
        "job.id": job.parent_id or job.id,
        "job.name": job.name,
        "job.type": job.type,
        "job.namespace": allocation.namespace,
        "job.region": place.region,
        "group.name": allocation.task_group,
        "task.name": task.name,
        "alloc.id": allocation.id,
        **{f"job.meta.{key}": value for key, value in (job.meta or {}).items()},
    }
    claims = {}
    for name in identity.extra_claims or ():
        if name not in place.claims:
            raise Refused(f"the setting identity_claims has no claim {name!r}")
        claims[name] = resolve(place.claims[name], {}, values)
    return claims


def _of_service(service: Service) -> Identity:
    """Return the identity of a service; one that is not handed over where it has none."""
    given = service.identity or Identity()
    name = given.name or f"service_{service.name}"
    return msgspec.structs.replace(given, name=name, service_name=service.name)


def lifetime(identity: Identity) -> int:
    """Return how long a token lives, in nanoseconds."""
    return min(identity.ttl, LONGEST)


def variable_of(identity: Identity) -> str:
    """Return the variable that holds a token."""
    if identity.name == DEFAULT:
        return "NOMAD_TOKEN"
    return (
        f"NOMAD_TOKEN_{identity.name.replace('-', '_') if identity.service_name else identity.name}"
    )


def path_of(identity: Identity) -> str:
    """Return the file that holds a token, below the task's directory."""
    if identity.filepath:
        return identity.filepath
    name = "nomad_token" if identity.name == DEFAULT else f"nomad_{identity.name}.jwt"
    return f"secrets/{name}"
