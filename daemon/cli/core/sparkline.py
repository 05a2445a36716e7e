"""A row of numbers as a line of small bars. No I/O."""

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], top: float = 0.0) -> str:
    """Return one bar for each value, and a blank for each missing value.

    The highest bar is `top`, or the highest value if that is more.

    >>> sparkline([0, 50, None, 100]), sparkline([1, 2], top=8)
    ('▁▄ █', '▁▂')
    """
    highest = max([top, *(value for value in values if value is not None)])
    return "".join(_bar(value, highest) for value in values)


def _bar(value: float | None, highest: float) -> str:
    if value is None:
        return " "
    level = int(value / highest * (len(_BARS) - 1)) if highest else 0
    return _BARS[max(0, min(level, len(_BARS) - 1))]


def coarser(values: Sequence[float | None], width: int) -> list[float | None]:
    """Divide the values into at most `width` parts, and return the highest value of each.

    >>> coarser([1, 2, None, 5, None, None], 3)
    [2, 5, None]
    """
    part_length = max(1, -(-len(values) // width))
    parts = [values[start : start + part_length] for start in range(0, len(values), part_length)]
    return [max((value for value in part if value is not None), default=None) for part in parts]
