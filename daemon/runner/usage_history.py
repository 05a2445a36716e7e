"""Record the resource usage of the host, jobs, allocations and tasks over time.

Every 10 s, the recorder measures all objects and keeps the samples in memory. Every five minutes,
one write stores the samples of all objects. Every three hours, a thread computes coarser samples
from the stored samples, one for every five minutes. A crash loses at most five minutes. While a
client watches an object, the recorder also measures it every second, and keeps these samples in
memory only.

Each time, the recorder measures at most 100 allocations, which limits its CPU time. If there are
more, it measures them in turn; their CPU usage is then the mean since the previous measurement.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec
import trio

from daemon.clock import Clock, wait_until
from storage import garbage
from storage.errors import StewardError, StorageError
from storage.queries import usage_history
from storage.queries.usage_history import COARSE, FINE, LENGTH, Blocks
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.usage import AllocationUsage, ResourceUsage
from storage.records.usage_history import (
    SeriesKey,
    UsageBlock,
    UsageMetric,
    UsageSamples,
    Values,
    binned,
    total,
)
from storage.store import Store
from storage.writer import Transaction

MOST_SERIES = 2000  # stored series of allocations and tasks; one takes about 60 KiB after 30 days
_EACH_ROUND = 100  # allocations per round; a round takes at most 0.05 s of CPU time
_MOST_WATCHED = 50  # allocations that are measured every second
_ANSWER_WITHIN = 3.0  # seconds, so that one driver does not delay the others
_WATCHED_FOR = 15  # seconds after the last request of a client
_LIVE_SAMPLES = 600  # samples of one second
_SLOTS = LENGTH[FINE] // FINE
_KIBIBYTE = 1024
_FINE, _LIVE = "history", "live"  # readers of `AllocRunner.usage`

_log = logging.getLogger("steward.runner")


class MeasuredRunner(Protocol):
    """The parts of `AllocRunner` that the recorder uses."""

    node_id: str
    disk_used: int

    @property
    def id(self) -> str:
        """Return the ID of the allocation."""
        ...

    @property
    def namespace(self) -> str:
        """Return the namespace of the allocation."""
        ...

    @property
    def job_id(self) -> str:
        """Return the ID of the allocation's job."""
        ...

    @property
    def restarts(self) -> int:
        """Return the number of restarts of all tasks."""
        ...

    async def usage(self, reader: str = "") -> AllocationUsage:
        """Return the usage of the tasks since the previous call with the same `reader`."""
        ...


class _Measured(msgspec.Struct):
    """The latest sample of an allocation.

    `restarts` is the number of restarts since the previous sample. `network` is the traffic of the
    network that the tasks share.
    """

    tasks: dict[str, UsageSamples]
    network: UsageSamples
    disk: int
    restarts: int
    restarts_ever: int


class _OpenBlock(msgspec.Struct):
    """The samples since the last write: a value for each slot, by series and metric."""

    begin: int
    values: dict[SeriesKey, dict[UsageMetric, Values]] = {}

    def record(self, slot: int, key: SeriesKey, samples: UsageSamples) -> None:
        series = self.values.setdefault(key, {})
        for metric, value in samples.items():
            series.setdefault(metric, [None] * _SLOTS)[slot] = value


class UsageRecorder:
    """Holds samples in memory; its loop measures and stores them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        node_id: str,
        present: Callable[[], list[MeasuredRunner]],
        host: Callable[[str], UsageSamples],
    ) -> None:
        """Initialize; `present` returns the running allocations.

        `host` returns the usage of the host. It takes the name of a reader, as `AllocRunner.usage`
        does.
        """
        self._store, self._clock, self._node_id = store, clock, node_id
        self._present, self._host = present, host
        self._open = _OpenBlock(0)
        self._latest: dict[str, _Measured] = {}
        self._slot = -1  # the latest slot with samples
        # By ID, the second until which an allocation or the node is watched.
        self._watched: dict[str, int] = {}
        self._live: dict[SeriesKey, deque[tuple[int, UsageSamples]]] = {}
        self._live_restarts: dict[str, int] = {}
        self._wake = trio.Event()

    # --- requests ---

    def watch(self, key: SeriesKey) -> None:
        """Measure an object every second, for 15 seconds after the last call."""
        now, is_first = self._clock.now() // SECOND, not self._watched
        ids = [identifier.id for identifier in self._present() if _belongs_to(key, identifier)]
        for identifier in [key.owner] if key.kind == "node" else ids:
            if identifier in self._watched or len(self._watched) < _MOST_WATCHED:
                self._watched[identifier] = now + _WATCHED_FOR
        if is_first and self._watched:
            self._wake.set()

    async def read(self, key: SeriesKey, begin: int, end: int, step: int) -> dict[str, UsageBlock]:
        """Return the samples of an object by task, one for each `step` from `begin` to `end`.

        `begin`, `end` and `step` are in seconds. A `step` below 10 selects the samples in memory, a
        `step` below 300 the samples of 10 s, and a longer `step` the samples of five minutes.
        """
        if step < FINE:
            self.watch(key)
            live = {
                series.task: samples
                for series, samples in self._live.items()
                if _is_of(key, series)
            }
            return await garbage.in_thread(partial(_binned_live, live, begin, end, step))
        opened = self._open.begin
        open_block = {
            series: dict(block)
            for series, block in self._open.values.items()
            if _is_of(key, series)
        }  # copies, because a thread reads them
        work = partial(_read, key=key, begin=begin, end=end, step=step)
        parts_by_series = await self._store.read_any(work)
        for series, block in open_block.items():
            parts_by_series.setdefault(series, []).append((FINE, opened, block))
        garbage.free_in_thread(parts_by_series)
        return await garbage.in_thread(partial(_binned_parts, parts_by_series, begin, end, step))

    def recent_cpu(self, alloc_id: str, namespace: str, count: int) -> Values:
        """Return the latest `count` CPU samples of an allocation, oldest first.

        The values are in thousandths of a core, and cover the last five minutes at most.
        """
        key = SeriesKey("alloc", alloc_id, namespace)
        blocks = [block for series, block in self._open.values.items() if _is_of(key, series)]
        values = total(blocks).get(UsageMetric.CPU, [])
        slot = self._slot % _SLOTS + 1
        return values[max(0, slot - count) : slot]

    # --- the loop ---

    async def run(self) -> None:
        """Measure and store until cancelled."""
        now = self._clock.now() // SECOND
        await self.resume(now)
        try:
            await self.fold(now)
            while True:
                await self._round()
        finally:
            # Losing the last block of samples must not prevent the shutdown.
            with trio.CancelScope(shield=True), suppress(StorageError):
                await self._store_block()

    async def resume(self, now: int) -> None:
        """Load the samples of the current block that an earlier daemon has stored."""
        begin = _begin(now // FINE)
        find = partial(usage_history.within, step=FINE, begin=begin, end=begin + 1)
        stored_blocks = await self._store.read_long(find)
        self._open = _OpenBlock(
            begin,
            {key: dict(blocks[begin]) for key, blocks in stored_blocks.items() if begin in blocks},
        )

    async def _round(self) -> None:
        self._wake, now = trio.Event(), self._clock.now()
        period = (1 if self._watched else FINE) * SECOND
        await wait_until((now // period + 1) * period, self._clock, self._wake)
        second = self._clock.now() // SECOND
        slot = second // FINE - 1  # the samples are those of the slot that has just ended
        if slot != self._slot:
            await self.sample(slot)
        self._watched = {key: until for key, until in self._watched.items() if until >= second}
        if self._watched:
            await self.sample_live(second)
        else:
            self._live.clear()

    async def sample(self, slot: int) -> None:
        """Measure all objects for the slot of 10 s that has just ended.

        Store the block after its last slot.
        """
        self._slot = slot
        if _begin(slot) != self._open.begin:
            await self._store_block()
            self._open = _OpenBlock(_begin(slot))
        runners = self._present()
        turns = -(-len(runners) // _EACH_ROUND) or 1
        await self._measure(runners[slot % turns :: turns])
        running_ids = {runner.id for runner in runners}
        self._latest = {
            key: measured for key, measured in self._latest.items() if key in running_ids
        }
        for key, samples in self._all_samples(runners):
            self._open.record(slot % _SLOTS, key, samples)
        if slot % _SLOTS == _SLOTS - 1:
            await self._store_block()
            await self.fold(_begin(slot) + LENGTH[FINE])

    async def _measure(self, runners: Iterable[MeasuredRunner]) -> None:
        """Measure allocations at the same time, so that all share one scan of the processes."""
        async with trio.open_nursery() as nursery:
            for runner in runners:
                nursery.start_soon(self._measure_one, runner)

    async def _measure_one(self, runner: MeasuredRunner) -> None:
        usage = await _usage_of(runner, _FINE)
        before = self._latest.pop(runner.id, None)
        if usage is None:
            return
        self._latest[runner.id] = _Measured(
            {name: _samples(task_usage.resource_usage) for name, task_usage in usage.tasks.items()},
            _shared_traffic(usage),
            runner.disk_used // _KIBIBYTE,
            max(0, runner.restarts - before.restarts_ever) if before else 0,
            runner.restarts,
        )

    def _all_samples(
        self, runners: Iterable[MeasuredRunner]
    ) -> Iterable[tuple[SeriesKey, UsageSamples]]:
        """Yield the samples of this slot, including the sums of jobs and of cluster pools."""
        sums: dict[SeriesKey, dict[UsageMetric, int]] = {}
        yield SeriesKey("node", self._node_id), self._measured_host(_FINE)
        for runner in runners:
            measured = self._latest.get(runner.id)
            if measured is None:
                continue
            yield from _of_allocation(runner, measured)
            groups = [SeriesKey("job", runner.job_id, runner.namespace)]
            if runner.node_id != self._node_id:
                groups.append(SeriesKey("node", runner.node_id))
            for key in groups:
                _add(sums.setdefault(key, {}), measured)
            measured.restarts = 0  # it counts in one slot only
        yield from sums.items()

    def _measured_host(self, reader: str) -> UsageSamples:
        """Return the usage of the host; without samples if it cannot be measured now."""
        try:
            return self._host(reader)
        except OSError as error:
            _log.warning("the usage of the host cannot be measured: %s", error)
            return {}

    async def sample_live(self, second: int) -> None:
        """Measure the watched objects, and keep the samples in memory."""
        if self._node_id in self._watched:
            self._record_live(second, SeriesKey("node", self._node_id), self._measured_host(_LIVE))
        jobs: dict[SeriesKey, dict[UsageMetric, int]] = {}
        for runner in self._present():
            if runner.id not in self._watched:
                continue
            usage = await _usage_of(runner, _LIVE)
            if usage is None:
                continue
            ever = runner.restarts
            measured = _Measured(
                {name: _samples(task.resource_usage) for name, task in usage.tasks.items()},
                _shared_traffic(usage),
                runner.disk_used // _KIBIBYTE,
                ever - self._live_restarts.get(runner.id, ever),
                ever,
            )
            self._live_restarts[runner.id] = ever
            for key, samples in _of_allocation(runner, measured):
                self._record_live(second, key, samples)
            _add(jobs.setdefault(SeriesKey("job", runner.job_id, runner.namespace), {}), measured)
            await trio.lowlevel.checkpoint()
        for key, sums in jobs.items():
            self._record_live(second, key, sums)

    def _record_live(self, second: int, key: SeriesKey, samples: UsageSamples) -> None:
        if key not in self._live:
            self._live[key] = deque(maxlen=_LIVE_SAMPLES)
        self._live[key].append((second, samples))

    # --- the store ---

    async def _store_block(self) -> None:
        """Store the open block in one write, in a thread because the write may have many rows."""
        begin, blocks = self._open.begin, self._open.values
        if not blocks:
            return
        most, now = MOST_SERIES, self._clock.now() // SECOND

        def write(tx: Transaction) -> None:
            usage_history.put(tx, FINE, begin, blocks)
            usage_history.trim(tx, now, most)

        await self._store.write(write, is_long=True)

    async def fold(self, now: int) -> None:
        """Compute and store the samples of five minutes for all complete windows of three hours."""
        first, last = self._store.read(
            lambda db: (usage_history.first_begin(db, FINE), usage_history.last_begin(db, COARSE))
        )
        length = LENGTH[COARSE]
        if first is None:
            return
        begin = max(first // length * length, 0 if last is None else last + length)
        for window in range(begin, now // length * length, length):
            blocks = await self._store.read_long(partial(_folded, begin=window))
            if blocks:
                write = partial(usage_history.put, step=COARSE, begin=window, blocks=blocks)
                await self._store.write(write, is_long=True)


async def _usage_of(runner: MeasuredRunner, reader: str) -> AllocationUsage | None:
    """Return the usage of an allocation; None if its driver does not answer."""
    try:
        with trio.move_on_after(_ANSWER_WITHIN):
            return await runner.usage(reader)
    except (OSError, StewardError) as error:
        _log.debug("the usage of allocation %s is unknown: %s", runner.id, error)
    return None


def _begin(slot: int) -> int:
    """Return the time at which the block that contains a slot begins, in Unix seconds."""
    return slot // _SLOTS * LENGTH[FINE]


def _is_of(series_key: SeriesKey, key: SeriesKey) -> bool:
    return (series_key.kind, series_key.owner, series_key.namespace) == (
        key.kind,
        key.owner,
        key.namespace,
    )


def _belongs_to(key: SeriesKey, runner: MeasuredRunner) -> bool:
    if key.kind == "job":
        return (runner.job_id, runner.namespace) == (key.owner, key.namespace)
    return runner.id == key.owner


def _samples(usage: ResourceUsage) -> UsageSamples:
    memory = usage.memory_stats
    return {
        UsageMetric.CPU: round(usage.cpu_stats.percent * 10),
        UsageMetric.MEMORY: (memory.usage or memory.rss) // _KIBIBYTE,
        **_traffic(usage),
    }


def _traffic(usage: ResourceUsage) -> UsageSamples:
    network_usage = usage.network_stats
    if network_usage is msgspec.UNSET:
        return {}
    return {UsageMetric.RECEIVED: network_usage.received, UsageMetric.SENT: network_usage.sent}


def _shared_traffic(usage: AllocationUsage) -> UsageSamples:
    """Return the traffic of the network that the tasks of an allocation share."""
    single = [_traffic(task.resource_usage) for task in usage.tasks.values()]
    return {
        metric: value - sum(metrics.get(metric, 0) for metrics in single)
        for metric, value in _traffic(usage.resource_usage).items()
    }


def _of_allocation(
    runner: MeasuredRunner, result: _Measured
) -> Iterable[tuple[SeriesKey, UsageSamples]]:
    shared = {UsageMetric.RESTARTS: result.restarts, **result.network}
    if result.disk:
        shared[UsageMetric.DISK] = result.disk
    yield SeriesKey("alloc", runner.id, runner.namespace), shared
    for name, samples in result.tasks.items():
        yield SeriesKey("alloc", runner.id, runner.namespace, name), samples


def _add(sums: dict[UsageMetric, int], result: _Measured) -> None:
    """Add the samples of an allocation to the sums of its job."""
    parts: list[Mapping[UsageMetric, int]] = [*result.tasks.values(), result.network]
    parts.append(
        {
            UsageMetric.RESTARTS: result.restarts,
            UsageMetric.ALLOCATIONS: int(bool(result.tasks)),
        }
    )
    if result.disk:  # 0 until the first measurement
        parts.append({UsageMetric.DISK: result.disk})
    for part in parts:
        for metric, value in part.items():
            sums[metric] = sums.get(metric, 0) + value


Parts = list[tuple[int, int, UsageBlock]]  # step, begin and values of blocks


def _read(
    db: ReadSnapshot, *, key: SeriesKey, begin: int, end: int, step: int
) -> dict[SeriesKey, Parts]:
    """Return the stored blocks of an object from `begin` to `end`.

    If `step` is at least five minutes, coarse blocks are returned as far as they exist. For the
    remaining time, or if `step` is shorter, fine blocks are returned.
    """
    find = partial(usage_history.of_owner, db, key.kind, key.namespace, key.owner)
    parts_by_series: dict[SeriesKey, Parts] = {}
    fine_begin = begin
    if step >= COARSE:
        last = usage_history.last_begin(db, COARSE)
        fine_begin = max(begin, last + LENGTH[COARSE] if last is not None else begin)
        _collect(parts_by_series, COARSE, find(step=COARSE, begin=begin, end=end))
    if fine_begin < end:
        _collect(parts_by_series, FINE, find(step=FINE, begin=fine_begin, end=end))
    return parts_by_series


def _binned_parts(
    series_parts: Mapping[SeriesKey, Parts], begin: int, end: int, step: int
) -> dict[str, UsageBlock]:
    return {series.task: binned(parts, begin, end, step) for series, parts in series_parts.items()}


def _binned_live(
    live: Mapping[str, deque[tuple[int, UsageSamples]]], begin: int, end: int, step: int
) -> dict[str, UsageBlock]:
    """Return the one-second samples by task. This runs in a thread while samples are added."""
    binned_by_task = {}
    for task, samples in live.items():
        parts: Parts = [
            (1, second, {metric: [value] for metric, value in sample.items()})
            for second, sample in samples.copy()  # one operation, which no other thread interrupts
        ]
        binned_by_task[task] = binned(parts, begin, end, step)
    return binned_by_task


def _collect(parts_by_series: dict[SeriesKey, Parts], step: int, blocks: Blocks) -> None:
    for key, parts in blocks.items():
        parts_by_series.setdefault(key, []).extend(
            (step, begin_of_block, block) for begin_of_block, block in parts.items()
        )


def _folded(db: ReadSnapshot, *, begin: int) -> dict[SeriesKey, UsageBlock]:
    """Return the coarse blocks of the window that begins at `begin`."""
    end = begin + LENGTH[COARSE]
    stored_blocks = usage_history.within(db, FINE, begin, end)
    return {
        key: binned(
            [(FINE, begin_of_block, block) for begin_of_block, block in blocks.items()],
            begin,
            end,
            COARSE,
        )
        for key, blocks in stored_blocks.items()
    }
