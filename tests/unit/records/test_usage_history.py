"""Usage over time: packed blocks, and one value for several samples."""

import msgspec
import pytest

from storage.records.usage_history import (
    UsageMetric,
    Values,
    binned,
    fold,
    pack,
    series_of,
    total,
    unpack,
)

CPU, MEMORY, RESTARTS = UsageMetric.CPU, UsageMetric.MEMORY, UsageMetric.RESTARTS


@pytest.mark.parametrize(
    "values",
    [[0, 0, 0], [None, 5, None, 7, 3, None], [2**40, 0, 2**40], [-1, None, 1]],
)
def test_packed_block_has_the_same_values(values: Values) -> None:
    assert unpack(pack({CPU: values})) == {CPU: values}


def test_block_without_values_and_without_restarts_takes_no_space() -> None:
    assert unpack(pack({MEMORY: [None, None], RESTARTS: [0, 0]})) == {}


def test_steady_samples_take_one_byte_each() -> None:
    assert len(pack({CPU: [500] * 30})) < 40


def test_varying_samples_take_one_byte_each() -> None:
    assert len(pack({UsageMetric.SENT: [3**place for place in range(24)]})) < 24 + 30


def test_rounded_samples_stay_near_and_within_their_range() -> None:
    values = [70_000 * place % 100_003 for place in range(36)]
    found = [value or 0 for value in unpack(pack({MEMORY: [None, *values]}))[MEMORY][1:]]
    assert (min(found), max(found)) == (min(values), max(values))
    most = max(abs(one - other) for one, other in zip(found, values, strict=True))
    assert 0 < most <= 100_003 / 500


def test_block_of_an_older_version_is_read() -> None:
    old = msgspec.msgpack.encode({CPU: [500, None, -20], MEMORY: [1024, 0, 0]})
    assert unpack(old) == {CPU: [500, None, 480], MEMORY: [1024, 1024, 1024]}


def test_missing_samples_are_not_counted() -> None:
    assert fold(CPU, [None, None]) is None
    assert fold(CPU, [10, None, 30]) == 20
    assert fold(MEMORY, [10, None, 30]) == 30
    assert fold(RESTARTS, [1, 0, 2]) == 3


def test_values_of_blocks_with_different_steps_share_their_bins() -> None:
    blocks = [(300, 0, {MEMORY: [5, 6]}), (10, 600, {MEMORY: [1, 9, 2]})]
    assert binned(blocks, 0, 900, 300)[MEMORY] == [5, 6, 9]


def test_values_outside_of_the_time_range_are_omitted() -> None:
    assert binned([(10, 0, {CPU: [1, 2, 3, 4]})], 10, 30, 10)[CPU] == [2, 3]


def test_sum_has_values_for_partial_samples() -> None:
    assert total([{CPU: [1, None]}, {CPU: [2, None], MEMORY: [7, 8]}]) == {
        CPU: [3, None],
        MEMORY: [7, 8],
    }


def test_series_has_the_units_of_the_api() -> None:
    usage_series = series_of("main", {CPU: [15, None], MEMORY: [2, None]})
    assert (usage_series.cpu_percent, usage_series.memory, usage_series.disk) == (
        [1.5, None],
        [2048, None],
        [],
    )
