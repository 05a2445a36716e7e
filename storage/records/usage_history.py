"""Usage over time: samples of node, jobs, allocations and tasks, and their packed blocks. No I/O.

A block has the samples of one series within a window, one sample for each step. Samples are
integers: CPU in thousandths of a core, memory and disk in KiB, network in bytes per second. A block
stores each sample as one byte, relative to the lowest sample of the block.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from storage.records.base import Record


class UsageMetric(StrEnum):
    """A measured value. Packed blocks use the value of the enum as key."""

    CPU = "c"
    MEMORY = "m"
    DISK = "d"
    RECEIVED = "r"
    SENT = "s"
    RESTARTS = "x"  # within the step
    ALLOCATIONS = "n"  # number of running allocations


# Memory and disk are compared with a limit, so the highest of several samples counts.
_HIGHEST = frozenset({UsageMetric.MEMORY, UsageMetric.DISK, UsageMetric.ALLOCATIONS})

_MOST = 255  # of a packed sample

Values = list[int | None]
UsageBlock = Mapping[UsageMetric, Values]  # values of a block, which all have the same length
UsageSamples = Mapping[UsageMetric, int]


class SeriesKey(msgspec.Struct, frozen=True, order=True):
    """The object that a series measures.

    `kind` is `node`, `job` or `alloc`; `owner` is the ID of the object. A series of an allocation
    without a `task` measures the resources that the tasks share.
    """

    kind: str
    owner: str
    namespace: str = ""
    task: str = ""


class UsageSeries(Record, frozen=True, kw_only=True):
    """The values of one object for each step; a missing measurement is null.

    CPU is in percent of one core. Memory and disk are in bytes, network in bytes per second.
    """

    task: str = ""
    cpu_percent: list[float | None] = msgspec.field(default_factory=list, name="CPUPercent")
    memory: Values = []
    disk: Values = []
    received: Values = []
    sent: Values = []
    restarts: Values = []
    allocations: Values = []


class UsageLimits(Record, frozen=True, kw_only=True):
    """The resource limits of an object, in the units of its series; 0 means no limit."""

    task: str = ""
    cpu_percent: float = msgspec.field(default=0.0, name="CPUPercent")
    memory: int = 0
    disk: int = 0


class UsageHistory(Record, frozen=True, kw_only=True):
    """The usage of an object over time: `from` and `to` in nanoseconds, `step` in seconds.

    `no_network` is the reason why the network of some or all tasks is not measured, or empty.
    """

    begin: int = msgspec.field(name="From")
    end: int = msgspec.field(name="To")
    step: int
    enabled: bool
    series: list[UsageSeries]
    limits: list[UsageLimits] = []
    no_network: str = ""


class _Packed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The samples of one metric, one byte for each sample; no bytes if all samples are equal.

    A byte is the difference from the lowest sample, in 255ths of `spread`; if `spread` is 0, the
    byte is the exact difference. `missing` has a bit for each sample.
    """

    lowest: int
    codes: bytes = b""
    spread: int = 0
    missing: bytes = b""


class _PackedBlock(msgspec.Struct, frozen=True, array_like=True):
    count: int
    metrics: dict[UsageMetric, _Packed]


def pack(block: UsageBlock) -> bytes:
    """Return a block as bytes.

    A metric without values is omitted, and so are restarts if all are 0. Each sample is rounded to
    1/255 of the range of its metric in the block. The lowest and the highest sample are exact.
    """
    metrics = {key: _packed(values) for key, values in block.items() if _counts(key, values)}
    count = max((len(values) for values in block.values()), default=0)
    return msgspec.msgpack.encode(_PackedBlock(count, metrics))


def unpack(data: bytes) -> dict[UsageMetric, Values]:
    """Return the block in `data`.

    In `data` from older versions, each sample is the difference from the previous sample.
    """
    decoded = msgspec.msgpack.decode(data, type=_PackedBlock | dict[UsageMetric, Values])
    if isinstance(decoded, dict):
        return {key: _sums(values) for key, values in decoded.items()}
    return {key: _unpacked(packed, decoded.count) for key, packed in decoded.metrics.items()}


def _counts(metric: UsageMetric, values: Values) -> bool:
    if metric == UsageMetric.RESTARTS:
        return any(values)
    return any(value is not None for value in values)


def _packed(values: Sequence[int | None]) -> _Packed:
    present_values = [value for value in values if value is not None]
    lowest, spread = min(present_values), max(present_values) - min(present_values)
    codes = [0 if value is None else value - lowest for value in values]
    if spread > _MOST:
        codes = [(code * _MOST + spread // 2) // spread for code in codes]
    missing = sum(1 << index for index, value in enumerate(values) if value is None)
    return _Packed(
        lowest,
        bytes(codes) if spread else b"",
        spread if spread > _MOST else 0,
        missing.to_bytes(-(-missing.bit_length() // 8), "little"),
    )


def _unpacked(packed: _Packed, count: int) -> Values:
    lowest, spread = packed.lowest, packed.spread or _MOST
    values: Values = [lowest + (code * spread + _MOST // 2) // _MOST for code in packed.codes]
    values = values or [lowest] * count
    missing = int.from_bytes(packed.missing, "little")
    for index in range(missing.bit_length()):
        if missing >> index & 1:
            values[index] = None
    return values


def _sums(values: Sequence[int | None]) -> Values:
    total, sums = 0, []
    for value in values:
        total += value or 0
        sums.append(None if value is None else total)
    return sums


def fold(metric: UsageMetric, values: Iterable[int | None]) -> int | None:
    """Return one value for several samples of a metric.

    For memory, disk and allocations, this is the highest sample. For restarts, it is the sum, and
    for all other metrics the mean.

    >>> fold(UsageMetric.CPU, [10, None, 20]), fold(UsageMetric.MEMORY, [10, 20])
    (15, 20)
    """
    present_values = [value for value in values if value is not None]
    if not present_values:
        return None
    if metric in _HIGHEST:
        return max(present_values)
    if metric == UsageMetric.RESTARTS:
        return sum(present_values)
    return round(sum(present_values) / len(present_values))


def total(blocks: Iterable[UsageBlock]) -> dict[UsageMetric, Values]:
    """Return the sum of blocks of equal length. A value is missing if no block has it."""
    totals: dict[UsageMetric, Values] = {}
    for block in blocks:
        for key, values in block.items():
            sums = totals.get(key)
            totals[key] = values if sums is None else [*map(_plus, sums, values)]
    return totals


def _plus(number: int | None, other: int | None) -> int | None:
    return number if other is None else other if number is None else number + other


def binned(
    blocks: Iterable[tuple[int, int, UsageBlock]], begin: int, end: int, step: int
) -> UsageBlock:
    """Return one value of each metric for each `step` from `begin` to `end`, all in seconds.

    Each element of `blocks` is the step of a block, its begin, and the block.

    >>> cpu = UsageMetric.CPU
    >>> binned([(10, 100, {cpu: [1, 3, None, 7]})], 100, 160, 20)[cpu]
    [2, 7, None]
    """
    count = max(0, (end - begin) // step)
    bins_by_metric: dict[UsageMetric, list[Values]] = {}
    for step_of_block, first, block in blocks:
        for metric, values in block.items():
            bins = bins_by_metric.get(metric)
            if bins is None:
                bins = bins_by_metric[metric] = [[] for _ in range(count)]
            for number, value in enumerate(values):
                index = (first + number * step_of_block - begin) // step
                if value is not None and 0 <= index < count:
                    bins[index].append(value)
    return {
        metric: [fold(metric, values) for values in bins] for metric, bins in bins_by_metric.items()
    }


_KIBIBYTE = 1024


def series_of(task: str, block: UsageBlock) -> UsageSeries:
    """Return a block in the units of the API.

    `task` is the name of the task that the block measures; empty for the whole object.
    """

    def scaled(metric: UsageMetric, factor: int = 1) -> Values:
        return [None if value is None else value * factor for value in block.get(metric, ())]

    return UsageSeries(
        task=task,
        cpu_percent=[
            None if value is None else value / 10 for value in block.get(UsageMetric.CPU, ())
        ],
        memory=scaled(UsageMetric.MEMORY, _KIBIBYTE),
        disk=scaled(UsageMetric.DISK, _KIBIBYTE),
        received=scaled(UsageMetric.RECEIVED),
        sent=scaled(UsageMetric.SENT),
        restarts=scaled(UsageMetric.RESTARTS),
        allocations=scaled(UsageMetric.ALLOCATIONS),
    )
