"""Constraints, affinities and spreads, at job, group and task level."""

from storage.records.base import Int8, Record, Uint8


class Constraint(Record, frozen=True, kw_only=True):
    """A condition that a node must satisfy."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""


class Affinity(Record, frozen=True, kw_only=True):
    """A condition that raises (weight > 0) or lowers (weight < 0) the score of a node."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""
    weight: Int8 = 0


class SpreadTarget(Record, frozen=True, kw_only=True):
    """The desired percentage of allocations on nodes with this attribute value."""

    value: str = ""
    percent: Uint8 = 0


class Spread(Record, frozen=True, kw_only=True):
    """A preference to distribute allocations over the values of a node attribute."""

    attribute: str = ""
    weight: Int8 = 0
    spread_target: list[SpreadTarget] | None = None
