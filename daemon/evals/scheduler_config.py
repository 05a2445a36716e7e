"""The scheduler configuration: stored values and validation.

Settings that this version cannot honor are rejected instead of ignored.

At most one worker runs. Evaluations stay pending if there is no worker, or if the worker does not
process their job type. A change of the setting or a restart of the daemon ends this state.
"""

from collections.abc import Sequence

import msgspec

from storage.errors import Malformed
from storage.queries import evaluations, settings
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.operator_api import SchedulerConfig
from storage.store import Store
from storage.writer import Transaction

_NAME = "scheduler"
_FIRST = SchedulerConfig(create_index=1, modify_index=1)
_ALGORITHMS = ("binpack", "spread")  # equivalent on a single node


def configuration(db: ReadSnapshot) -> SchedulerConfig:
    """Return the stored configuration of the scheduler."""
    text = settings.find(db, _NAME)
    return msgspec.json.decode(text, type=SchedulerConfig) if text else _FIRST


async def configure(
    store: Store, config: SchedulerConfig, *, expected: int | None = None
) -> tuple[bool, int]:
    """Store the configuration; with `expected`, only if that is the index of its last change.

    Return whether the configuration was stored, and the index of its last change. Raises
    `Malformed`.
    """
    _check(config)
    if not config.scheduler_algorithm:
        config = msgspec.structs.replace(config, scheduler_algorithm=_ALGORITHMS[0])

    def write(tx: Transaction) -> tuple[bool, int]:
        before = configuration(tx)
        if expected is not None and before.modify_index != expected:
            return False, before.modify_index
        after = msgspec.structs.replace(
            config, create_index=before.create_index, modify_index=tx.index
        )
        settings.put(tx, _NAME, encode(after).decode())
        tx.touch(evaluations.ROOM, evaluations.ROOM)  # preemption may be possible now
        return True, tx.index

    return await store.write(write)


def _check(scheduler_config: SchedulerConfig) -> None:
    if (
        scheduler_config.scheduler_algorithm
        and scheduler_config.scheduler_algorithm not in _ALGORITHMS
    ):
        raise Malformed(f"invalid scheduler algorithm: {scheduler_config.scheduler_algorithm}")


# --- workers ---

TYPES = ("service", "batch", "system", "sysbatch")
CORE = "_core"  # the daemon's internal maintenance, which is never stopped
ALL = (*TYPES, CORE)

_WORKERS = "scheduler-workers"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The number of workers, and their job types."""

    number: int = 1
    kinds: tuple[str, ...] = ALL

    @property
    def types(self) -> Sequence[str]:
        """Return the job types that are processed."""
        return [type_ for type_ in TYPES if type_ in self.kinds] if self.number else []

    @property
    def processes_all(self) -> bool:
        """Return whether all job types are processed."""
        return len(self.types) == len(TYPES)


def workers(db: ReadSnapshot) -> WorkerSettings:
    """Return the configured workers."""
    text = settings.find(db, _WORKERS)
    return msgspec.json.decode(text, type=WorkerSettings) if text else WorkerSettings()


async def set_workers(store: Store, number: int, kinds: Sequence[str]) -> WorkerSettings:
    """Set the number of workers and their job types. Raises `Malformed`.

    Nomad's message is "Invalid request". Steward adds the field and the reason.
    """
    if number < 0:
        raise Malformed(f"Invalid request: num_schedulers is {number}; it must be 0 or 1")
    if CORE not in kinds:
        raise Malformed(f'Invalid request: enabled_schedulers lacks "{CORE}"')
    if unknown := sorted(set(kinds) - set(ALL)):
        raise Malformed(
            f'Invalid request: enabled_schedulers has the unknown type "{unknown[0]}"; '
            f"the types are {', '.join(ALL)}"
        )
    if number > 1:
        raise Malformed(
            f"Invalid request: num_schedulers is {number}; it must be 0 or 1: a server has one worker"
        )
    worker_settings = WorkerSettings(
        number=number, kinds=tuple(type_ for type_ in ALL if type_ in kinds)
    )

    def write(tx: Transaction) -> None:
        settings.put(tx, _WORKERS, msgspec.json.encode(worker_settings).decode())
        tx.touch(evaluations.ROOM, evaluations.ROOM)  # pending evaluations may be processed now

    await store.write(write)
    return worker_settings


async def forget_workers(store: Store) -> None:
    """Delete the worker settings, so that all job types are processed, as at each start."""
    if store.read(lambda db: bool(settings.find(db, _WORKERS))):
        await store.write(lambda tx: settings.remove(tx, _WORKERS))
