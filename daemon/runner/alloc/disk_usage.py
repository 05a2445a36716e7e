"""Compare the disk usage of allocations with the limit in their `ephemeral_disk` block.

The launcher measures the directories of running allocations one after the other. Logs and artifacts
count. Mounted file systems and the holes of sparse files do not count.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from typing import Protocol

from daemon.fences import Fences
from daemon.launcher.messages import DirectoryUsage
from daemon.runner.alloc.alloc_gc import in_rounds

_log = logging.getLogger("steward.runner")
_FENCED = "disk usage"
Measure = Callable[[str], Awaitable[DirectoryUsage]]


class MeasuredAllocation(Protocol):
    """A running allocation; `disk_used` is its last measured disk usage in bytes."""

    disk_used: int

    @property
    def id(self) -> str:
        """Return the ID of the allocation."""
        ...

    @property
    def disk(self) -> int:
        """Return the disk limit in bytes; 0 means no limit."""
        ...

    async def report_over_limit(self, used: int) -> None:
        """Handle a usage of `used` bytes, which exceeds the limit."""
        ...


async def watch(
    tenants: Callable[[], Iterable[MeasuredAllocation]],
    measure: Measure,
    period: float,
    fences: Fences | None = None,
) -> None:
    """Check all running allocations every `period` seconds until cancelled."""
    await in_rounds(
        "disk usage check",
        lambda: notify_over_limit(tenants(), measure, fences),
        period=period,
        first=period,
    )


async def notify_over_limit(
    tenants: Iterable[MeasuredAllocation], measure: Measure, fences: Fences | None = None
) -> None:
    """Notify each allocation that exceeds its limit. An error skips only that allocation."""
    for tenant in list(tenants):
        with fences.around(_FENCED, tenant.id) if fences else nullcontext():
            await _check_limit(tenant, measure)


async def _check_limit(measured_allocation: MeasuredAllocation, measure: Measure) -> None:
    if not measured_allocation.disk:
        return
    try:
        used = (await measure(measured_allocation.id)).used
    except OSError as error:  # its directory does not exist yet, or was removed
        _log.debug("the disk usage of allocation %s is unknown: %s", measured_allocation.id, error)
        return
    measured_allocation.disk_used = used
    if used > measured_allocation.disk:
        await measured_allocation.report_over_limit(used)
