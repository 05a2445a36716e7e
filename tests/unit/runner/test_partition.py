"""Hosts and their states from a cluster's description of a partition."""

import pytest

from daemon.runner.drivers.slurm.partition import Partition, fields_of, partition_hosts
from storage.records.node import EngineHost


def test_line_is_parsed_into_a_host() -> None:
    assert partition_hosts("node1|mixed|16|8000|gpu,big,gpu|none\n") == [
        EngineHost(
            name="node1",
            state="up",
            description="takes jobs",
            cores=16,
            memory_mb=8000,
            features=["big", "gpu"],
        )
    ]


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "completing", "planned", "IDLE"])
def test_load_of_a_host_is_ignored(state: str) -> None:
    (one,) = partition_hosts(f"a|{state}|1|1|(null)|none")
    assert (one.state, one.reason, one.description, one.features) == ("up", "", "takes jobs", [])


@pytest.mark.parametrize(
    ("state", "reason", "shown", "words"),
    [
        ("down*", "Not responding", "down*", "is down, and does not respond: Not responding"),
        ("allocated*", "none", "up*", "does not respond"),
        ("drained", "disk | is full", "drained", "accepts no new jobs: disk | is full"),
        (
            "draining",
            "Duplicate jobid",
            "draining",
            "finishes the running jobs and accepts no new jobs: Duplicate jobid",
        ),
        ("maint", "", "maint", "is being maintained"),
        ("idle~", "none", "up", "takes jobs"),
        ("idle$", "none", "maint", "is being maintained"),
        ("mixed@", "none", "reboot", "is being restarted"),
        ("blocked", "x\x1b[2Jy", "blocked", "is blocked: x[2Jy"),
    ],
)
def test_every_other_state_is_stored_and_described(
    state: str, reason: str, shown: str, words: str
) -> None:
    (one,) = partition_hosts(f"a|{state}|1|1|(null)|{reason}")
    assert (one.state, one.description) == (shown, words)


def test_duplicate_hosts_and_malformed_lines_are_ignored() -> None:
    text = "b|idle|1|1||none\nb|idle|1|1||none\na|idle|many|1||none\nwarning: x\n\n|idle|1|1||"
    assert [partition_host.name for partition_host in partition_hosts(text)] == ["b"]


def test_largest_host_can_be_down() -> None:
    hosts = partition_hosts("a|idle|4|900||none\nb|down|8|100||none\nc|idle|8|50||none")
    partition = Partition(hosts=hosts)
    assert partition.largest is not None
    assert (partition.largest.name, [item.name for item in partition.working]) == ("b", ["a", "c"])
    assert Partition(hosts=[]).largest is None


def test_scontrol_output_is_parsed_into_pairs() -> None:
    line = "PartitionName=main AllowGroups=ALL MaxTime=UNLIMITED State=UP TRES=cpu=32,mem=1 odd"
    said = fields_of(line)
    assert (said["State"], said["MaxTime"], said["TRES"]) == ("UP", "UNLIMITED", "cpu=32,mem=1")
    assert "odd" not in said
