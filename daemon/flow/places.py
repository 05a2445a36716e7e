"""Limits of active elements: the places of a step and of its run.

An element takes a place from its beginning to its end, even while it waits for its next attempt. An
element that waits for capacity, or for a slot of a queue, also has a place.
"""

from typing import TYPE_CHECKING

import msgspec

from storage.records.flow import PARALLEL_REASON, RunStep

if TYPE_CHECKING:
    from daemon.flow.graph import Step

_IT_WAITS = f"{PARALLEL_REASON}it waits"


class PlaceShare(msgspec.Struct, frozen=True):
    """The places of a step after a decision.

    `begun` of its missing elements get a place. `reason` says why the other missing elements get no
    place; it is empty if all get a place. With `has_none`, no element of the step has a place,
    because the run has no free place.
    """

    begun: int
    reason: str = ""
    has_none: bool = False


def share_of(
    step: "Step", *, active: int, missing: int, free: int | None, most: int | None
) -> PlaceShare:
    """Return the places of a step with `active` elements and `missing` further elements.

    The run has `most` places, and `free` of them are free; None means that the run has no limit.
    """
    own = missing if step.parallel is None else min(missing, max(step.parallel - active, 0))
    begun = own if free is None else min(own, max(free, 0))
    if begun == missing:
        return PlaceShare(begun)
    if begun == own:
        until = _until(step.parallel, "none of its elements is", "of its elements are")
    else:
        until = _until(most, "no allocation of the run is", "allocations of the run are")
        if not active + begun:
            return PlaceShare(begun, f"{_IT_WAITS} {until}", has_none=True)
    number = missing - begun
    subject = "1 element waits" if number == 1 else f"{number} elements wait"
    return PlaceShare(begun, f"{PARALLEL_REASON}{subject} {until}")


def _until(most: int | None, none: str, fewer: str) -> str:
    """Return a clause that states when a place is free.

    The clause uses `none` if there is only one place, and `fewer` if there are several.
    """
    return f"until {none} active" if most == 1 else f"until fewer than {most} {fewer} active"


def has_no_place(row: RunStep) -> bool:
    """Return whether no element of a step may begin before other elements of its run end."""
    return row.reason.startswith(_IT_WAITS)


def count_without_place(row: RunStep) -> int:
    """Return how many elements of an open step wait for the end of other elements."""
    if not row.reason.startswith(PARALLEL_REASON):
        return 0
    number = row.reason.removeprefix(PARALLEL_REASON).split(" ", 1)[0]
    return int(number) if number.isdecimal() else max(row.total - row.good - row.failed, 0)
