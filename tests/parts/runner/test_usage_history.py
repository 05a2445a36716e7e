"""The usage recorder: blocks in the store, samples of each second in memory, and limits."""

import errno
from functools import partial

import pytest
import trio

from daemon.runner import usage_history as recorder_module
from daemon.runner.drivers.podman.api import PodmanFailed
from daemon.runner.usage_history import UsageRecorder
from storage.queries import usage_history
from storage.queries.usage_history import COARSE, FINE, LENGTH
from storage.records.base import SECOND
from storage.records.usage import (
    AllocationUsage,
    CPUUsage,
    MemoryUsage,
    NetworkUsage,
    ResourceUsage,
    TaskUsage,
)
from storage.records.usage_history import SeriesKey, UsageMetric, UsageSamples
from storage.store import Store
from tests.samples import NOW

CPU, MEMORY, RESTARTS = UsageMetric.CPU, UsageMetric.MEMORY, UsageMetric.RESTARTS
BEGIN = NOW // SECOND // LENGTH[COARSE] * LENGTH[COARSE]
SLOTS = LENGTH[FINE] // FINE
NODE, ALLOC = SeriesKey("node", "n"), SeriesKey("alloc", "a", "default")
JOB = SeriesKey("job", "web", "default")


class Allocation:
    """A running allocation with one task, whose usage the test sets."""

    namespace, job_id, node_id = "default", "web", "n"

    def __init__(self, name: str = "a") -> None:
        self.id, self.percent, self.restarts, self.disk_used = name, 50.0, 0, 0
        self.readers: list[str] = []

    async def usage(self, reader: str = "") -> AllocationUsage:
        self.readers.append(reader)
        used = ResourceUsage(
            cpu_stats=CPUUsage(percent=self.percent), memory_stats=MemoryUsage(rss=1 << 20)
        )
        task = TaskUsage(resource_usage=used, timestamp=NOW, pids={})
        return AllocationUsage(resource_usage=used, tasks={"main": task}, timestamp=NOW)


class Host:
    """A host with running allocations, and its recorder."""

    def __init__(self, store: Store, *running: Allocation) -> None:
        self.running, self.store, self.time = [*running], store, BEGIN * SECOND
        self.recorder = UsageRecorder(
            store, self, "n", lambda: [*self.running], lambda _reader: {CPU: 700}
        )

    def now(self) -> int:
        return self.time

    async def sample(self, *slots: int) -> None:
        """Take the samples of these slots, which count from the start of a window."""
        for slot in slots:
            self.time = (BEGIN + (slot + 1) * FINE) * SECOND
            await self.recorder.sample(BEGIN // FINE + slot)

    async def read(self, key: SeriesKey, begin: int, end: int, step: int) -> dict[str, object]:
        found = await self.recorder.read(key, BEGIN + begin, BEGIN + end, step)
        return {task: dict(block) for task, block in found.items()}


@pytest.fixture
def alloc() -> Allocation:
    return Allocation()


@pytest.fixture
def host(store: Store, alloc: Allocation) -> Host:
    return Host(store, alloc)


async def test_samples_are_shown_before_their_write(host: Host, alloc: Allocation) -> None:
    await host.sample(0)
    alloc.percent = 70.0
    await host.sample(1)
    assert await host.read(ALLOC, 0, 20, FINE) == {
        "": {RESTARTS: [0, 0]},
        "main": {CPU: [500, 700], MEMORY: [1024, 1024]},
    }
    assert host.store.read(partial(usage_history.last_begin, step=FINE)) is None


async def test_one_write_stores_all_series_of_a_block(host: Host) -> None:
    before = host.store.change_number
    await host.sample(*range(SLOTS))
    assert host.store.change_number == (before or 0) + 1
    found = host.store.read(partial(usage_history.within, step=FINE, begin=BEGIN, end=BEGIN + 1))
    assert found[SeriesKey("alloc", "a", "default", "main")][BEGIN][CPU] == [500] * SLOTS
    assert found[NODE][BEGIN] == {CPU: [700] * SLOTS}
    assert found[JOB][BEGIN][UsageMetric.ALLOCATIONS] == [1] * SLOTS


async def test_missed_samples_stay_empty(host: Host) -> None:
    await host.sample(0, 2)
    assert await host.read(NODE, 0, 40, FINE) == {"": {CPU: [700, None, 700, None]}}


async def test_next_daemon_continues_the_block(host: Host, store: Store, alloc: Allocation) -> None:
    await host.sample(0)
    await host.recorder._store_block()
    host = Host(store, alloc)
    await host.recorder.resume(BEGIN + 20)
    await host.sample(2)
    assert await host.read(NODE, 0, 30, FINE) == {"": {CPU: [700, None, 700]}}


async def test_completed_window_is_folded(host: Host) -> None:
    window = LENGTH[COARSE]
    await host.sample(*range(SLOTS), window // FINE - 1)
    found = host.store.read(
        partial(usage_history.within, step=COARSE, begin=BEGIN, end=BEGIN + window)
    )
    values = found[NODE][BEGIN][CPU]
    assert (values[0], values[1], values[-1], len(values)) == (700, None, 700, 36)


async def test_coarse_read_includes_unfolded_samples(host: Host) -> None:
    window = LENGTH[COARSE]
    await host.sample(*range(SLOTS), window // FINE - 1, window // FINE, window // FINE + 1)
    found = await host.read(NODE, 0, window + COARSE, COARSE)
    assert found[""][CPU][0] == 700
    assert found[""][CPU][-1] == 700


async def test_restart_is_counted_in_one_sample(host: Host, alloc: Allocation) -> None:
    await host.sample(0)
    alloc.restarts = 2
    await host.sample(1, 2)
    found = await host.read(ALLOC, 0, 30, FINE)
    assert found[""][RESTARTS] == [0, 2, 0]


async def test_job_has_the_sum_of_its_allocations(store: Store) -> None:
    host = Host(store, Allocation("a"), Allocation("b"))
    await host.sample(0)
    found = await host.read(JOB, 0, 10, FINE)
    assert found[""][CPU] == [1000]


async def test_disk_usage_is_missing_before_its_first_measurement(
    host: Host, alloc: Allocation
) -> None:
    await host.sample(0)
    alloc.disk_used = 2048
    await host.sample(1)
    found = await host.read(JOB, 0, 20, FINE)
    assert found[""][UsageMetric.DISK] == [None, 2]


class Networked(Allocation):
    """An allocation on the bridge with a container that has its own network."""

    async def usage(self, reader: str = "") -> AllocationUsage:
        whole = ResourceUsage(network_stats=NetworkUsage(received=30, sent=7))
        own = ResourceUsage(network_stats=NetworkUsage(received=10, sent=7))
        task = TaskUsage(resource_usage=own, timestamp=NOW, pids={})
        return AllocationUsage(resource_usage=whole, tasks={"box": task}, timestamp=NOW)


async def test_traffic_counts_once_in_tasks_allocation_and_job(store: Store) -> None:
    received, sent = UsageMetric.RECEIVED, UsageMetric.SENT
    host = Host(store, Networked("a"), Networked("b"), Allocation("c"))
    host.recorder.watch(JOB)
    await host.sample(0)
    await host.recorder.sample_live(BEGIN)
    for end, step in ((FINE, FINE), (1, 1)):
        found = await host.read(ALLOC, 0, end, step)
        assert (found["box"][received], found["box"][sent]) == ([10], [7])
        assert (found[""][received], found[""][sent]) == ([20], [0])
        found = await host.read(JOB, 0, end, step)
        assert (found[""][received], found[""][sent]) == ([60], [14])


async def test_allocation_on_the_network_of_the_host_has_no_traffic(host: Host) -> None:
    await host.sample(0)
    found = await host.read(ALLOC, 0, FINE, FINE)
    assert UsageMetric.SENT not in {**found[""], **found["main"]}


class Failing(Allocation):
    """An allocation whose driver is not available."""

    async def usage(self, reader: str = "") -> AllocationUsage:
        raise PodmanFailed("podman does not answer")


class Silent(Allocation):
    """An allocation whose driver does not answer."""

    async def usage(self, reader: str = "") -> AllocationUsage:
        await trio.sleep_forever()
        raise AssertionError


async def test_failing_driver_does_not_affect_other_allocations(store: Store) -> None:
    host = Host(store, Failing("bad"), Allocation("good"))
    host.recorder.watch(JOB)
    await host.sample(0)
    await host.recorder.sample_live(BEGIN)
    assert (await host.read(JOB, 0, 10, FINE))[""][CPU] == [500]
    assert (await host.read(JOB, 0, 1, 1))[""][CPU] == [500]


async def test_unresponsive_driver_is_awaited_for_a_limited_time(
    store: Store, autojump_clock: object
) -> None:
    host = Host(store, Silent("bad"), Allocation("good"))
    await host.sample(0)
    assert trio.current_time() < FINE
    assert host.recorder.recent_cpu("good", "default", 1) == [500]


async def test_round_measures_a_bounded_number_of_allocations(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_EACH_ROUND", 2)
    running = [Allocation(name) for name in "abcde"]
    host = Host(store, *running)
    await host.sample(0)
    assert sum(len(alloc.readers) for alloc in running) == 2
    await host.sample(1, 2)
    assert [len(alloc.readers) for alloc in running] == [1] * 5
    assert (await host.read(JOB, 20, 30, FINE))[""][CPU] == [2500]


async def test_seconds_are_measured_only_while_a_client_watches(
    host: Host, alloc: Allocation
) -> None:
    assert await host.read(ALLOC, 0, 2, 1) == {}
    await host.recorder.sample_live(BEGIN)
    alloc.percent = 80.0
    await host.recorder.sample_live(BEGIN + 1)
    found = await host.read(ALLOC, 0, 2, 1)
    assert found["main"] == {CPU: [500, 800], MEMORY: [1024, 1024]}
    assert set(alloc.readers) == {"live"}


async def test_number_of_watched_allocations_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_MOST_WATCHED", 2)
    running = [Allocation(name) for name in "abc"]
    host = Host(store, *running)
    host.recorder.watch(JOB)
    await host.recorder.sample_live(BEGIN)
    assert sum(len(alloc.readers) for alloc in running) == 2


async def test_recent_values_end_with_the_latest_sample(host: Host) -> None:
    await host.sample(0, 1, 3)
    assert host.recorder.recent_cpu("a", "default", 3) == [500, None, 500]
    assert host.recorder.recent_cpu("other", "default", 3) == []


async def test_old_blocks_and_surplus_series_are_deleted(host: Host) -> None:
    await host.sample(0)
    await host.recorder._store_block()
    later = BEGIN + usage_history.KEPT[FINE] + 1
    await host.store.write(lambda tx: usage_history.trim(tx, later, most=1))
    read = host.store.read
    assert read(partial(usage_history.last_begin, step=FINE)) is None
    await host.recorder._store_block()
    await host.store.write(lambda tx: usage_history.trim(tx, BEGIN, most=1))
    found = read(partial(usage_history.within, step=FINE, begin=BEGIN, end=BEGIN + 1))
    assert sorted(key.kind for key in found) == ["alloc", "job", "node"]


async def test_failed_measurement_of_the_host_is_one_warning_and_loses_no_other_samples(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def measure(_: str) -> UsageSamples:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/net/dev")

    host = Host(store, Allocation("good"))
    host.recorder._host = measure
    host.recorder.watch(SeriesKey("node", "n"))
    await host.sample(0)
    await host.recorder.sample_live(BEGIN)
    assert host.recorder.recent_cpu("good", "default", 1) == [500]
    text = (
        "the usage of the host cannot be measured: [Errno 24] Too many open files: '/proc/net/dev'"
    )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", text)
    ] * 2
