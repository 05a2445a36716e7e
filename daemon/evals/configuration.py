"""The scheduler's configuration: what is set, and what may be.

What this daemon could not keep is refused when it is asked for, not passed over later.
"""

import msgspec

from storage.errors import Malformed
from storage.queries import evaluations, settings
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.operation import SchedulerConfig
from storage.store import Store
from storage.writer import Transaction

_NAME = "scheduler"
_FIRST = SchedulerConfig(create_index=1, modify_index=1)
_ALGORITHMS = ("binpack", "spread")  # the same thing as long as there is one node


def configuration(db: Snapshot) -> SchedulerConfig:
    """Return the configuration as it was set last."""
    text = settings.find(db, _NAME)
    return msgspec.json.decode(text, type=SchedulerConfig) if text else _FIRST


async def configure(
    store: Store, wanted: SchedulerConfig, *, expected: int | None = None
) -> tuple[bool, int]:
    """Set the configuration, or only if it was set last at the `expected` index.

    Return whether it was set, and the index of its last change. Raises `Malformed`.
    """
    _check(wanted)

    def write(tx: Transaction) -> tuple[bool, int]:
        before = configuration(tx)
        if expected is not None and before.modify_index != expected:
            return False, before.modify_index
        after = msgspec.structs.replace(
            wanted, create_index=before.create_index, modify_index=tx.index
        )
        settings.put(tx, _NAME, encode(after).decode())
        tx.touch(evaluations.ROOM, evaluations.ROOM)  # others may have to make room by now
        return True, tx.index

    return await store.write(write)


def _check(wanted: SchedulerConfig) -> None:
    if wanted.scheduler_algorithm not in _ALGORITHMS:
        raise Malformed(f"invalid scheduler algorithm: {wanted.scheduler_algorithm}")
