"""The secrets that tasks received. They are kept encrypted, so that output can be masked later.

The values outlive the variable that they came from, the token, and the daemon. They are deleted
with the logs of their allocation.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.text.masking import Matcher, TaskSecrets
from storage import garbage
from storage.errors import Refused, StorageUnavailable, Unsealable
from storage.queries import secrets
from storage.queries.secrets import SealedSecret
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.store import Store
from storage.writer import Transaction

_ROOT = "output/"
JOB_ROOT = "job-variables/"  # followed by namespace, job, create index and version
JOB_TABLE = "job_secrets"  # name of the index that changes with these rows
_MOST_ROWS = 200  # rows of an allocation, one per delivery; then one row replaces all of them
_MOST_FORMS = 100_000  # forms of secrets in the cached matchers of all allocations: some 60 MB
_MOST_OF_JOBS = 100_000  # the same limit for the matchers of all jobs
_SMALL = 10  # forms that are added to the size of each matcher, for its fixed cost
_STEP = 100  # allocations per write of a cleanup


class TaskSecretStore:
    """The stored secrets of tasks, by allocation."""

    def __init__(self, store: Store, seal: EnvelopeCipher) -> None:
        self._store, self._seal = store, seal
        self._jobs = _JobsWithSecrets(store)
        self._in_use: dict[str, dict[str, Collection[str]]] = {}  # values by allocation and task

    def record_in_use(self, alloc_id: str, task: str, values: Collection[str]) -> None:
        """Record the secrets that a task uses now. `store` drops them only after all others."""
        self._in_use.setdefault(alloc_id, {})[task] = values

    async def recall(self, alloc_id: str) -> list[str]:
        """Return the secrets that the tasks of an allocation received, oldest first.

        Raises `Refused` if they cannot be read.
        """
        try:
            rows = await self._store.read_any(lambda db: secrets.below(db, _prefix(alloc_id)))
            return decrypted(self._seal, rows)
        except (StorageUnavailable, Unsealable) as error:
            raise Refused(f"recorded secrets cannot be read for masking: {error}") from error

    async def store(self, alloc_id: str, values: Sequence[str]) -> None:
        """Store secrets before a task receives them. Raises `Refused` if they cannot be stored.

        If an allocation has too many rows, values or bytes, a single row replaces all its rows. The
        single row has the newest values; values in use count as the newest ones.
        """
        prefix = _prefix(alloc_id)
        in_use = [value for used in self._in_use.get(alloc_id, {}).values() for value in used]

        def write(tx: Transaction) -> None:
            rows, added = secrets.below(tx, prefix), [*values]
            task_secrets = TaskSecrets([*decrypted(self._seal, rows), *values])
            if len(rows) >= _MOST_ROWS or task_secrets.is_full:
                task_secrets.drop_oldest(in_use)
                added = task_secrets.values
                for row in rows:
                    secrets.remove(tx, row.place)
            number = int(rows[-1].place.rpartition("/")[2]) + 1 if rows else 0
            path = f"{prefix}{number:09d}"
            secrets.put(tx, path, self._seal.seal(encode(added), path))

        try:
            has_rows = bool(await self._store.read_any(lambda db: secrets.places(db, prefix)))
            await self._store.write(write, is_long=has_rows)  # decrypting 1 MiB takes long
        except (StorageUnavailable, Unsealable) as error:
            raise Refused(f"secrets cannot be recorded for masking: {error}") from error

    async def of_job(self, namespace: str, job_id: str) -> list[str]:
        """Return the values of the sensitive variables of a job, oldest first."""
        if (namespace, job_id) not in await self._jobs.keys():
            return []
        rows = await self._store.read_any(lambda db: job_values(db, namespace, job_id))
        return decrypted(self._seal, rows)

    async def tidy(self, has_logs: Callable[[str], Awaitable[bool]]) -> None:
        """Delete the secrets of allocations that have neither a directory nor retained logs."""
        paths = await self._store.read_long(lambda db: secrets.places(db, _ROOT))
        owners = dict.fromkeys(path.split("/")[1] for path in paths)
        ended_owners = [owner for owner in owners if not await has_logs(owner)]
        for first in range(0, len(ended_owners), _STEP):
            await self._store.write(partial(_forget, ids=ended_owners[first : first + _STEP]))
        for alloc_id in ended_owners:
            self._in_use.pop(alloc_id, None)
        unneeded = await self._store.read_long(unneeded_places)
        for first in range(0, len(unneeded), _STEP):
            await self._store.write(partial(_remove, paths=unneeded[first : first + _STEP]))


class _JobsWithSecrets:
    """The jobs with sensitive values. The set is read again when stored values have changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._commits = -1  # the store's number of commits when `changed` was read
        self.changed = -1  # the index of the last change of any job's values
        self._lock = trio.Lock()
        self._keys: frozenset[tuple[str, str]] = frozenset()

    async def keys(self) -> frozenset[tuple[str, str]]:
        """Return the namespace and ID of each job with sensitive values."""
        if self._store.commits != self._commits:
            async with self._lock:
                await self._refresh()
        return self._keys

    async def _refresh(self) -> None:
        commits = self._store.commits
        if commits == self._commits:
            return
        index = self._store.read(lambda db: db.table_index(JOB_TABLE))
        if index != self.changed:
            paths = await self._store.read_long(partial(secrets.places, prefix=JOB_ROOT))
            self._keys = frozenset(_key_of(path) for path in paths)
            self.changed = index
        self._commits = commits


class _Known(NamedTuple):
    """The stored rows of secrets, and their matcher. They were current at commit `commits`."""

    commits: int
    rows: list[SealedSecret]
    matcher: Matcher | None

    @property
    def weight(self) -> int:
        """Return the size of this entry in the cache: its number of forms, plus a constant."""
        return _SMALL + (self.matcher.weight if self.matcher else 0)


_NOTHING = _Known(-1, [], None)


class OutputMatchers:
    """Matchers for the output of allocations, cached while their stored secrets stay the same.

    The cache limits the total number of forms, and drops the matchers that were used least
    recently.
    """

    def __init__(self, store: Store, seal: EnvelopeCipher) -> None:
        self._store, self._seal = store, seal
        self._made: OrderedDict[str, _Known] = OrderedDict()

    async def matcher(self, alloc_id: str) -> Matcher | None:
        """Return the matcher of an allocation, or None if its tasks received no secrets."""
        commits, before = self._store.commits, self._made.pop(alloc_id, _NOTHING)
        current = before
        if current.commits != commits:
            rows = await self._store.read_any(lambda db: secrets.below(db, _prefix(alloc_id)))
            matcher = current.matcher
            if rows != current.rows:
                matcher = await garbage.in_thread(partial(_matcher, self._seal, rows))
            current = _Known(commits, rows, matcher if rows else None)
        self._made[alloc_id] = current
        if before is _NOTHING or current.matcher is not before.matcher:
            self._drop_unused()
        return current.matcher

    def _drop_unused(self) -> None:
        excess = sum(cached.weight for cached in self._made.values()) - _MOST_FORMS
        while excess > 0:
            _, dropped = self._made.popitem(last=False)
            excess -= dropped.weight


class _MadeOfJob:
    """The matcher of one job, and its rows. The lock is held while the matcher is built."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.changed = -1  # the index of the last change of any job's values when `rows` were read
        self.rows: list[SealedSecret] = []
        self.matcher: Matcher | None = None

    @property
    def weight(self) -> int:
        """Return the size of this entry in the cache: its number of forms, plus a constant."""
        return _SMALL + (self.matcher.weight if self.matcher else 0)


class JobMasks:
    """The matchers for the sensitive values of jobs: one for each job, built when it is needed.

    One request builds the matcher of a job in a thread, and other requests wait for the matcher. A
    change of another job's values does not affect the matcher. If the cache is full, the largest
    matcher is dropped first. So a job with many values never displaces the matcher of a job with
    few values.
    """

    def __init__(self, store: Store, seal: EnvelopeCipher) -> None:
        self._store, self._seal = store, seal
        self._jobs = _JobsWithSecrets(store)
        self._made: OrderedDict[tuple[str, str], _MadeOfJob] = OrderedDict()

    async def jobs(self) -> frozenset[tuple[str, str]]:
        """Return the namespace and ID of each job with sensitive values."""
        return await self._jobs.keys()

    async def matcher(self, key: tuple[str, str]) -> Matcher | None:
        """Return the matcher of a job, or None if it has no sensitive values."""
        if key not in await self.jobs():
            return None
        cached = self._made.setdefault(key, _MadeOfJob())
        self._made.move_to_end(key)
        async with cached.lock:
            changed = self._jobs.changed
            if cached.changed != changed:
                rows = await self._store.read_any(lambda db: job_values(db, *key))
                if rows != cached.rows:
                    work = partial(_matcher_of_job, self._seal, rows)
                    cached.matcher = await garbage.in_thread(work) if rows else None
                    cached.rows = rows
                    self._drop_largest()
                cached.changed = changed
            return cached.matcher

    def _drop_largest(self) -> None:
        """Drop the largest matchers until the number of forms is below the limit.

        Among equally large matchers, the oldest is dropped first.
        """
        excess = sum(cached.weight for cached in self._made.values()) - _MOST_OF_JOBS
        while excess > 0:
            key = max(self._made, key=lambda mask_key: self._made[mask_key].weight)
            excess -= self._made.pop(key).weight


def matcher_of(values: Sequence[str]) -> Matcher:
    """Return the matcher for values and their JSON forms.

    If there are more than 20,000 forms, only the newest forms are matched.
    """
    task_secrets = TaskSecrets(values)
    task_secrets.drop_oldest()
    matcher = Matcher(form for value in task_secrets.values for form in _in_json(value))
    matcher.warm()
    return matcher


def _matcher_of_job(seal: EnvelopeCipher, rows: Sequence[SealedSecret]) -> Matcher:
    """Return the matcher for stored values of a job."""
    return matcher_of(decrypted(seal, rows))


def _in_json(value: str) -> list[bytes]:
    """Return the forms of a value in output: as it is and, if that differs, as a JSON string."""
    plain = value.encode(errors="replace")
    escaped = json.dumps(value, ensure_ascii=False)[1:-1].encode(errors="replace")
    return [plain] if escaped == plain else [plain, escaped]


def decrypted(seal: EnvelopeCipher, rows: Sequence[SealedSecret]) -> list[str]:
    """Return the decrypted values of rows. Raises `Unsealable`."""
    plain_values: dict[str, None] = {}
    for row in rows:
        plain = seal.unseal(row.sealed, row.place)
        plain_values |= dict.fromkeys(msgspec.json.decode(plain, type=list[str]))
    return list(plain_values)


def _matcher(seal: EnvelopeCipher, rows: Sequence[SealedSecret]) -> Matcher:
    task_secrets = TaskSecrets(decrypted(seal, rows))
    task_secrets.drop_oldest()
    matcher = Matcher(task_secrets)
    matcher.warm()
    return matcher


def job_prefix(namespace: str, job_id: str) -> str:
    """Return the path below which the values of a job's sensitive variables are stored."""
    return f"{JOB_ROOT}{namespace}/{job_id}/"


def job_place(namespace: str, job_id: str, create_index: int, version: int) -> str:
    """Return the path of the sensitive values of a job version.

    A job that is registered again after a purge has another path.
    """
    return f"{job_prefix(namespace, job_id)}{create_index:020d}-{version:010d}"


def job_values(db: ReadSnapshot, namespace: str, job_id: str) -> list[SealedSecret]:
    """Return the encrypted values of a job's sensitive variables, oldest version first."""
    prefix = job_prefix(namespace, job_id)
    # The name of a child begins with that of its parent and a slash.
    rows = secrets.below(db, prefix)
    own = [row for row in rows if "/" not in row.place.removeprefix(prefix)]
    return sorted(own, key=lambda row: _version_of(row.place))


def unneeded_places(db: ReadSnapshot) -> list[str]:
    """Return the paths of values that no version, allocation, child or event of their job needs."""
    paths: dict[tuple[str, str], list[str]] = {}
    for path in secrets.places(db, JOB_ROOT):
        paths.setdefault(_key_of(path), []).append(path)
    return [
        unneeded_path
        for key, job_paths in paths.items()
        for unneeded_path in _unneeded(db, key, job_paths)
    ]


def _unneeded(db: ReadSnapshot, key: tuple[str, str], paths: Sequence[str]) -> list[str]:
    """Return the paths in `paths` whose values a job no longer needs; `key` identifies the job."""
    # Imported late, because few stores have such values.
    from storage.queries import shown_versions

    if shown_versions.has_children(db, *key):  # a child shows any version of its parent
        return []
    present = shown_versions.present(db, *key)
    told_versions = shown_versions.event_versions(db, *key)
    begins = sorted({_version_of(path)[0] for path in paths} | {present.create_index})
    unneeded = []
    for path in paths:
        begin, version = _version_of(path)
        end = next((later for later in begins if later > begin), sys.maxsize)
        # A path without a create index (0) is from an older version, and may be of any
        # registration.
        is_present = begin in (0, present.create_index) and version in present.versions
        is_told = any(
            told_version in (None, version) and (begin == 0 or begin <= index < end)
            for told_version, index in told_versions
        )
        if not (is_present or is_told):
            unneeded.append(path)
    return unneeded


def _key_of(path: str) -> tuple[str, str]:
    """Return the namespace and ID of the job at a path."""
    namespace, _, rest = path.removeprefix(JOB_ROOT).partition("/")
    return namespace, rest.rpartition("/")[0]


def _version_of(path: str) -> tuple[int, int]:
    """Return the create index of the job and the version in a path.

    The create index is 0 if the path has none.
    """
    created, _, version = path.rpartition("/")[2].rpartition("-")
    return int(created or 0), int(version)


def _remove(tx: Transaction, *, paths: Sequence[str]) -> None:
    for path in paths:
        secrets.remove(tx, path)
    tx.touch(JOB_TABLE)


def _prefix(alloc_id: str) -> str:
    return f"{_ROOT}{alloc_id}/"


def _forget(tx: Transaction, *, ids: Sequence[str]) -> None:
    for alloc_id in ids:
        for path in secrets.places(tx, _prefix(alloc_id)):
            secrets.remove(tx, path)
