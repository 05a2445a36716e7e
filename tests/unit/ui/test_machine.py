"""The resources of a node by job."""

from typing import Any

from daemon.ui.machine import HUES, MachineMap, machine_map

NODE = {
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


def drawn(*placed: dict[str, Any]) -> MachineMap:
    return machine_map(NODE, placed)


def test_strip_has_a_part_for_each_job_from_the_largest() -> None:
    found = drawn(alloc("small", 100, 100), alloc("big", 200, 500), alloc("big", 300, 500))
    cpu, memory = found.strips
    assert [(part.job_id, part.x, part.width) for part in cpu.parts] == [
        ("big", 0, 500),
        ("small", 500, 100),
    ]
    assert cpu.said == "600 of 1000 MHz allocated, 400 MHz free"
    assert memory.parts[0].text == "big: 1000 MiB, 50.0 %"


def test_job_has_its_sums_and_the_room_for_more() -> None:
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
