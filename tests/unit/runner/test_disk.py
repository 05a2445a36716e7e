"""Allocations above their disk limit are reported."""

from daemon.launcher.messages import DirectoryUsage
from daemon.runner.alloc.disk_usage import notify_over_limit


class Tenant:
    def __init__(self, name: str, disk: int) -> None:
        self.id, self.disk = name, disk
        self.told: list[int] = []

    async def report_over_limit(self, used: int) -> None:
        self.told.append(used)


async def test_allocation_over_its_disk_limit_is_reported() -> None:
    tenants = [
        Tenant(name, disk) for name, disk in (("any", 0), ("gone", 1), ("less", 9), ("more", 1))
    ]

    async def measure(alloc_id: str) -> DirectoryUsage:
        if alloc_id == "gone":
            raise FileNotFoundError
        return DirectoryUsage(used=5, written=0)

    await notify_over_limit(tenants, measure)
    assert [tenant.told for tenant in tenants] == [[], [], [], [5]]
