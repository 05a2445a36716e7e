"""The scheduler's configuration: stored as it was set, refused if unsupported."""

import msgspec
import pytest

from daemon.evals.scheduler_config import configuration, configure, set_workers
from storage.errors import Malformed
from storage.records.job import JobType
from storage.records.operator_api import PreemptionConfig, SchedulerConfig
from storage.store import Store


async def test_stored_setting_is_shown_with_its_index(store: Store) -> None:
    updated, index = await configure(store, SchedulerConfig(reject_job_registration=True))
    scheduler_config = store.read(configuration)
    assert (updated, scheduler_config.reject_job_registration, scheduler_config.modify_index) == (
        True,
        True,
        index,
    )


async def test_conditional_update_fails_after_a_concurrent_change(store: Store) -> None:
    first = store.read(configuration)
    scheduler_config = SchedulerConfig(scheduler_algorithm="spread")
    _, index = await configure(store, scheduler_config, expected=first.modify_index)
    assert await configure(store, SchedulerConfig(), expected=first.modify_index) == (False, index)
    assert store.read(configuration).scheduler_algorithm == "spread"


async def test_permission_to_preempt_is_stored(store: Store) -> None:
    assert store.read(configuration).preemption_config == PreemptionConfig(
        system_scheduler_enabled=True
    )
    preemption_config = PreemptionConfig(
        system_scheduler_enabled=False, batch_scheduler_enabled=True
    )
    await configure(store, SchedulerConfig(preemption_config=preemption_config))
    kept = store.read(configuration).preemption_config
    allowed = [kind for kind in JobType if kept.may_preempt(kind)]
    assert (kept, allowed) == (preemption_config, [JobType.BATCH])


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("scheduler_algorithm", "best", "invalid scheduler algorithm: best"),  # as in Nomad
    ],
)
async def test_unsupported_setting_is_refused(
    store: Store, field: str, value: object, named: str
) -> None:
    wanted = msgspec.structs.replace(SchedulerConfig(), **{field: value})
    with pytest.raises(Malformed, match=named):
        await configure(store, wanted)


async def test_missing_algorithm_is_the_default(store: Store) -> None:
    await configure(store, SchedulerConfig(scheduler_algorithm=""))
    assert store.read(configuration).scheduler_algorithm == "binpack"


@pytest.mark.parametrize(
    ("number", "kinds", "reason"),
    [
        (-1, ["_core", "service"], "num_schedulers is -1; it must be 0 or 1"),
        (1, ["service"], 'enabled_schedulers lacks "_core"'),
        (1, ["_core", "best"], 'enabled_schedulers has the unknown type "best"'),
    ],
)
async def test_impossible_workers_are_refused(
    store: Store, number: int, kinds: list[str], reason: str
) -> None:
    with pytest.raises(Malformed, match=reason):
        await set_workers(store, number, kinds)
