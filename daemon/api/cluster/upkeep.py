"""Upkeep on request: forgetting what is dead, and counting anew."""

from daemon.evals import gc
from daemon.web.reply import Reply
from daemon.web.request import Request


async def collect_garbage(request: Request) -> Reply:
    """Forget at once what is dead, whatever its age."""
    parts = request.parts
    await gc.collect_now(parts.store, parts.clock.now(), gc.retention(parts.config))
    return Reply()


async def reconcile_summaries(request: Request) -> Reply:
    """Bring the status and the counts of every job up to date."""
    await gc.settle_all(request.parts.store)
    return Reply()
