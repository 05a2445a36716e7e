"""Start work in a long-lived nursery on behalf of a request."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVarTuple

import trio

Arguments = TypeVarTuple("Arguments")


def start_detached(
    nursery: trio.Nursery,
    function: Callable[[*Arguments], Awaitable[object]],
    *arguments: *Arguments,
) -> None:
    """Start a task with the context variables of the nursery's owner, not of the caller.

    By default, Trio copies the caller's variables. During a request, these variables limit the wait
    for the launcher and add the request to each write. They must not apply to work that outlives
    the request.
    """
    owner = nursery.parent_task.context.copy()
    owner.run(partial(nursery.start_soon, function, *arguments))
