"""The resources of a node by job."""

from typing import Any

from daemon.ui.resource_map import HUES, NodeMap, PoolMap, node_map, pool_map

NODE = {
    "Attributes": {},
    "NodeResources": {"Cpu": {"CpuShares": 1100}, "Memory": {"MemoryMB": 2048}},
    "ReservedResources": {"Cpu": {"CpuShares": 100}, "Memory": {"MemoryMB": 48}},
}


def alloc(job: str, cpu: int, memory: int, *ports: int, devices: int = 0) -> dict[str, Any]:
    task = {
        "Cpu": {"CpuShares": cpu},
        "Memory": {"MemoryMB": memory},
        "Devices": [{"DeviceIDs": ["x"] * devices}] if devices else None,
    }
    shared = {"Ports": [{"Value": port, "Label": "http"} for port in ports] or None}
    return {
        "ID": f"{job}-1",
        "JobID": job,
        "Namespace": "default",
        "AllocatedResources": {"Tasks": {"main": task}, "Shared": shared},
    }


def drawn(*placed: dict[str, Any]) -> NodeMap:
    return node_map(NODE, placed)


def test_strip_is_sorted_by_the_size_of_jobs() -> None:
    found = drawn(alloc("small", 100, 100), alloc("big", 200, 500), alloc("big", 300, 500))
    cpu, memory = found.strips
    assert [(part.job_id, part.x, part.width) for part in cpu.parts] == [
        ("big", 0, 500),
        ("small", 500, 100),
    ]
    assert cpu.said == "600 of 1000 MHz allocated, 400 MHz free"
    assert memory.parts[0].text == "big: 1000 MiB, 50.0 %"


def test_job_has_its_sums_and_the_capacity_for_more() -> None:
    big = drawn(alloc("big", 200, 500), alloc("big", 300, 400, devices=2)).jobs[0]
    assert (big.allocations, big.cpu, big.memory, big.devices) == (2, 500, 900, 2)
    assert big.fits == 1


def test_full_node_has_no_capacity() -> None:
    found = drawn(alloc("big", 1500, 100))
    assert found.jobs[0].fits == 0
    assert found.strips[0].parts[0].width == 1000


def test_ports_are_in_order_with_their_allocations() -> None:
    found = drawn(alloc("web", 1, 1, 8080, 443), alloc("db", 1, 1, 5432))
    assert [(port.port, port.job_id) for port in found.ports] == [
        (443, "web"),
        (5432, "db"),
        (8080, "web"),
    ]


def test_many_small_jobs_share_a_part() -> None:
    found = drawn(*(alloc(f"job-{number:02}", 10, 10) for number in range(50)))
    assert len(found.strips[0].parts) == 41
    assert found.strips[0].parts[-1].text == "other jobs: 100 MHz, 10.0 %"
    assert {job.hue for job in found.jobs} == set(range(HUES))


def test_empty_node_is_free() -> None:
    found = drawn()
    assert (found.jobs, found.ports, found.strips[0].parts) == ([], [], [])
    assert found.strips[0].said == "0 of 1000 MHz allocated, 1000 MHz free"


POOL = {
    "Attributes": {"engine.mhz_per_core": "1000"},
    "NodeResources": {"Cpu": {"CpuShares": 4000}, "Memory": {"MemoryMB": 3000}},
    "ReservedResources": {"Cpu": {"CpuShares": 0}, "Memory": {"MemoryMB": 0}},
    "Hosts": [
        {"Name": "c1", "State": "up", "Cores": 2, "MemoryMB": 1000},
        {"Name": "c2", "State": "up", "Cores": 2, "MemoryMB": 2000},
        {"Name": "c3", "State": "down", "Cores": 2, "MemoryMB": 2000},
    ],
}


def hosts(
    *placed: dict[str, Any], pool: dict[str, Any] = POOL, **tasks: str
) -> tuple[NodeMap, PoolMap]:
    """Return the maps of a cluster; `tasks` are the hosts of the allocations."""
    found = node_map(pool, placed)
    hosted = [
        {"Host": host, "AllocationID": f"{job}-1", "Task": "main"} for job, host in tasks.items()
    ]
    return found, pool_map(pool, placed, hosted, found.jobs)


def test_host_of_a_cluster_has_the_resources_of_its_tasks() -> None:
    found, pool = hosts(alloc("big", 1000, 500), alloc("small", 500, 400), big="c2.example.org")
    first, second, _ = pool.hosts
    assert (first.tasks, first.strips[0].parts) == (0, [])
    assert second.strips[0].said == "1000 of 2000 MHz allocated, 1000 MHz free"
    assert [part.text for part in second.strips[1].parts] == ["big: 500 MiB, 25.0 %"]
    assert second.strips[1].parts[0].hue == found.jobs[0].hue
    assert pool.waiting == 1


def test_further_allocations_of_a_cluster_fit_on_single_hosts_that_are_up() -> None:
    found, _ = hosts(alloc("big", 1000, 600), big="c1")
    assert found.jobs[0].fits == 2


def test_tasks_of_hidden_allocations_are_left_out() -> None:
    _, pool = hosts(alloc("big", 1000, 600), other="c1")
    assert [host.tasks for host in pool.hosts] == [0, 0, 0]


def test_task_of_a_cluster_uses_whole_cores() -> None:
    found, pool = hosts(alloc("big", 1200, 100), alloc("small", 100, 100), big="c1", small="c2")
    first, second, _ = pool.hosts
    assert first.strips[0].said == "2000 of 2000 MHz allocated, 0 MHz free"
    assert second.strips[0].said == "1000 of 2000 MHz allocated, 1000 MHz free"
    assert found.strips[0].said == "3000 of 4000 MHz allocated, 1000 MHz free"
    assert {job.job_id: job.fits for job in found.jobs} == {"big": 0, "small": 1}


def test_tasks_of_a_local_node_share_cores() -> None:
    assert drawn(alloc("big", 150, 100)).jobs[0].cpu == 150


TWINS = {
    **POOL,
    "Hosts": [
        {"Name": "c1.north.org", "State": "up", "Cores": 2, "MemoryMB": 1000},
        {"Name": "c1.south.org", "State": "up", "Cores": 2, "MemoryMB": 1000},
        {"Name": "c2", "State": "up", "Cores": 2, "MemoryMB": 1000},
    ],
}


def test_hosts_with_equal_short_names_have_their_own_tasks() -> None:
    _, pool = hosts(
        alloc("a", 100, 300),
        alloc("b", 100, 400),
        alloc("c", 100, 500),
        pool=TWINS,
        a="c1.north.org",
        b="c1.south.org",
        c="c2.south.org",
    )
    held = [host.strips[1].parts[0].text.partition(" MiB")[0] for host in pool.hosts]
    assert held == ["a: 300", "b: 400", "c: 500"]
    assert pool.elsewhere == {}


def test_ambiguous_or_unknown_host_names_are_reported() -> None:
    _, pool = hosts(alloc("a", 100, 300), alloc("b", 100, 400), pool=TWINS, a="c1", b="c1.west.org")
    assert [host.tasks for host in pool.hosts] == [0, 0, 0]
    assert pool.elsewhere == {"c1": 1, "c1.west.org": 1}
    assert pool.waiting == 0
