"""Maintenance on request: garbage collection and recounting."""

from daemon.evals import gc
from daemon.web.reply import HandlerReply
from daemon.web.request import Request


async def collect_garbage(request: Request) -> HandlerReply:
    """Collect all garbage now, regardless of its age."""
    parts = request.parts
    await gc.force_collection(parts.store, parts.clock.now(), gc.retention(parts.config))
    return HandlerReply()


async def reconcile_summaries(request: Request) -> HandlerReply:
    """Recompute the status and the counts of every job."""
    await gc.refresh_all_summaries(request.parts.store)
    return HandlerReply()
