from pathlib import Path

import msgspec

from daemon.runner.drivers.cgroup_v2 import mount_point, own_path
from daemon.runner.fingerprint import (
    computed_class,
    find_cpu,
    memory_bytes,
    volume,
)
from daemon.runner.host_networks import default_device
from storage.records.node import Node, NodeCPU, NodeDisk, NodeMemory, NodeResources

NODE = Node(
    id="n",
    name="node-1",
    datacenter="dc1",
    attributes={"cpu.arch": "amd64", "unique.hostname": "a"},
    meta={"zone": "a"},
    node_resources=NodeResources(
        cpu=NodeCPU(cpu_shares=1, total_cpu_cores=1, reservable_cpu_cores=[0]),
        memory=NodeMemory(memory_mb=1),
        disk=NodeDisk(disk_mb=1),
        networks=[],
    ),
    drivers={},
)
MOUNTS = (
    "23 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    "38 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "40 23 0:40 / /var/lib rw - xfs /dev/vdb rw\n"
)
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n"
    "eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\n"
)


def test_cpu_is_summed_over_all_usable_cores() -> None:
    cpu = find_cpu("model name\t: EPYC\ncpu MHz\t\t: 2596.096\n\nmodel name\t: EPYC\n", [90, 91])
    assert (cpu.total, cpu.model) == (5192, "EPYC")


def test_host_with_an_unknown_cpu_speed_is_treated_as_slow() -> None:
    assert find_cpu("processor : 0\n", [90]).total == 1000


def test_memory_is_the_total_of_the_host() -> None:
    assert memory_bytes("MemTotal:  24684092 kB\nMemFree: 1 kB\n") == 24684092 * 1024


def test_innermost_mount_is_the_volume() -> None:
    assert volume(MOUNTS, Path("/var/lib/steward")) == "/dev/vdb"
    assert volume(MOUNTS, Path("/home")) == "/dev/vda"


def test_default_device_belongs_to_the_default_route() -> None:
    assert default_device(ROUTES) == "eth0"
    assert default_device("Iface\n") == ""


def test_cgroup_v2_mount_is_found() -> None:
    assert mount_point(MOUNTS) == Path("/sys/fs/cgroup/unified")
    assert own_path("5:memory:/x\n0::/system.slice/steward.service\n") == (
        "/system.slice/steward.service"
    )


def test_nodes_with_different_unique_attributes_share_a_class() -> None:
    other = msgspec.structs.replace(
        NODE, id="m", name="x", attributes={**NODE.attributes, "unique.hostname": "b"}
    )
    assert computed_class(other) == computed_class(NODE)


def test_nodes_with_other_differences_do_not_share_a_class() -> None:
    others = [
        msgspec.structs.replace(NODE, meta={"zone": "b"}),
        msgspec.structs.replace(NODE, node_class="big"),
        msgspec.structs.replace(NODE, datacenter="dc2"),
        msgspec.structs.replace(NODE, attributes={"cpu.arch": "arm64"}),
    ]
    assert len({computed_class(node) for node in [NODE, *others]}) == 5
