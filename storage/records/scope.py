"""What narrows down or weighs the nodes on which something may run: at job, group and task level."""

from storage.records.base import Int8, Record, Uint8


class Constraint(Record, frozen=True, kw_only=True):
    """A condition that a node must meet."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""


class Affinity(Record, frozen=True, kw_only=True):
    """A condition that makes a node more (weight > 0) or less (weight < 0) welcome."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""
    weight: Int8 = 0


class SpreadTarget(Record, frozen=True, kw_only=True):
    """The share of allocations, in percent, wanted on nodes with this attribute value."""

    value: str = ""
    percent: Uint8 = 0


class Spread(Record, frozen=True, kw_only=True):
    """A wish to distribute allocations over the values of a node attribute."""

    attribute: str = ""
    weight: Int8 = 0
    spread_target: list[SpreadTarget] | None = None
