"""Texts about the slots of a queue. No I/O."""

from daemon.text.placement_message import count_noun


def slots_in_use(in_use: int, limit: int) -> str:
    """Format how many slots of a queue are in use, which may exceed a limit that was lowered.

    >>> slots_in_use(1, 2)
    '1 of 2 slots in use'
    >>> slots_in_use(2, 1)
    '2 slots in use, 1 more than its limit of 1'
    """
    if in_use > limit:
        return (
            f"{count_noun(in_use, 'slot')} in use, {in_use - limit} more than its limit of {limit}"
        )
    return f"{in_use} of {count_noun(limit, 'slot')} in use"
