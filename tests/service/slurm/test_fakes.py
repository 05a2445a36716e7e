"""The fake cluster answers like the real one: the same commands on both."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.fakes.slurm.world import fake_slurm
from tests.service.slurm.cluster import Cluster
from tests.time_limits import HAPPENS_WITHIN

TRUE = "#!/bin/sh\n"
OPTIONS = ("--parsable", "--no-requeue", "--output=/dev/null", "--error=/dev/null")
FORMAT = "%T|%r|%j|%k"


class Commands(Protocol):
    """The programs of a cluster, real or fake."""

    def run(
        self, *words: str, stdin: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]: ...


class Fake:
    """The programs of the fake cluster."""

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, *words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        program = shutil.which(words[0], path=self.path)
        assert program is not None
        env = {"PATH": self.path, "LC_ALL": "C", **more}
        return subprocess.run(
            [program, *words[1:]],
            input=stdin,
            capture_output=True,
            text=True,
            env=env,
            timeout=HAPPENS_WITHIN,
            check=False,
        )


@pytest.fixture(params=["fake", "real"])
def commands(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Commands]:
    if request.param == "real":
        cluster: Cluster = request.getfixturevalue("cluster")
        yield cluster
        return
    with fake_slurm(tmp_path / "slurm") as world:
        yield Fake(world.path)
        world.forgive()


def submit(commands: Commands, *words: str, script: str = TRUE, **more: str) -> str:
    done = commands.run("sbatch", *OPTIONS, *words, stdin=script, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(commands: Commands, number: str, pattern: str = FORMAT) -> str:
    return commands.run("squeue", "-h", "-t", "all", "-j", number, "-o", pattern).stdout.strip()


def until(commands: Commands, number: str, *states: str) -> str:
    """Wait until a job is in one of these states; return its line in the listing."""
    ends = time.monotonic() + HAPPENS_WITHIN
    while shown(commands, number, "%T") not in states:
        assert time.monotonic() < ends, shown(commands, number)
        time.sleep(0.05)
    return shown(commands, number)


REFUSED = [
    (["-p", "nope"], "invalid partition specified: nope", "Invalid partition name specified"),
    (["-C", "nope"], "", "Invalid feature specification"),
    (["--mem", "64000"], "Memory specification", "Requested node configuration is not available"),
]


@pytest.mark.parametrize(("words", "first", "last"), REFUSED)
def test_request_for_resources_that_no_node_has_is_refused(
    commands: Commands, words: list[str], first: str, last: str
) -> None:
    done = commands.run("sbatch", *OPTIONS, *words, stdin=TRUE)
    assert (done.returncode, done.stdout) == (1, "")
    assert first in done.stderr
    assert done.stderr.endswith(f"sbatch: error: Batch job submission failed: {last}\n")


WRONG = [
    (["sbatch", "--bogus"], 255, "sbatch: unrecognized option '--bogus'\n"),
    (["squeue", "--bogus"], 1, "squeue: unrecognized option '--bogus'\n"),
    (["scancel", "--bogus"], 1, "scancel: unrecognized option '--bogus'\n"),
    (["srun", "--bogus"], 255, "srun: unrecognized option '--bogus'\n"),
    (["sinfo", "--bogus"], 1, "sinfo: unrecognized option '--bogus'\n"),
    (["sbatch"], 1, "sbatch: error: Batch script is empty!\n"),
    (["sbatch", "-t", "abc"], 255, "sbatch: error: Invalid --time specification\n"),
    (["squeue", "-t", "bogus"], 1, "squeue: error: Invalid job state specified: bogus\n"),
    (["squeue", "-h", "-j", "9999"], 1, "slurm_load_jobs error: Invalid job id specified\n"),
    (["scancel", "-s", "XX", "9999"], 1, "Unknown job signal: XX\n"),
    (["scancel"], 1, "scancel: error: No job identification provided\n"),
    (
        ["scancel", "-b", "-s", "USR1", "9999"],
        1,
        "scancel: error: Kill job error on job id 9999: Invalid job id specified\n",
    ),
    (
        ["srun", "--jobid", "9999", "--overlap", "true"],
        1,
        "srun: error: Unable to confirm allocation for job 9999: Invalid job id specified\n",
    ),
]


@pytest.mark.parametrize(("words", "status", "text"), WRONG)
def test_invalid_input_gets_the_same_error_text(
    commands: Commands, words: list[str], status: int, text: str
) -> None:
    done = commands.run(*words)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(text)


def test_unknown_names_give_empty_output(commands: Commands) -> None:
    silent = [
        commands.run("scancel", "9999"),
        commands.run("squeue", "-h", "-n", "nobody"),
        commands.run("sinfo", "-h", "-p", "nope", "-N", "-o", "%N"),
    ]
    assert [(item.returncode, item.stdout, item.stderr) for item in silent] == [(0, "", "")] * 3


ENDS = [
    ("exit 0", "COMPLETED|None", "0"),
    ("exit 3", "FAILED|NonZeroExitCode", "768"),
    ("kill -9 $$", "FAILED|JobLaunchFailure", "9"),
]


@pytest.mark.parametrize(("line", "state", "code"), ENDS)
def test_a_job_ends(commands: Commands, line: str, state: str, code: str) -> None:
    number = submit(commands, "-J", "alloc-1", "--comment=1/t/0", script=f"{TRUE}{line}\n")
    assert until(commands, number, "COMPLETED", "FAILED") == f"{state}|alloc-1|1/t/0"
    raw = commands.run(
        "squeue", "-h", "-t", "all", "-j", number, "-O", "JobID:|,State:|,exit_code:|"
    )
    assert raw.stdout == f"{number}|{state.split('|')[0]}|{code}|\n"


def test_job_gets_only_the_named_variables(commands: Commands, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    script = f"{TRUE}env >{tmp_path}/env.part; pwd >>{tmp_path}/env.part\nmv {tmp_path}/env.part {tmp_path}/env\n"
    words = ("-J", "e", "--export=FIRST")
    number = submit(commands, *words, script=script, FIRST="a b", SECOND="s3cret")
    until(commands, number, "COMPLETED")
    lines = (tmp_path / "env").read_text().splitlines()
    assert {"FIRST=a b", f"SLURM_JOB_ID={number}", "SLURM_JOB_NAME=e", "TMPDIR=/tmp"} <= set(lines)
    assert "s3cret" not in str(lines)


def test_job_is_cancelled_with_its_processes(commands: Commands) -> None:
    number = submit(commands, script=f"{TRUE}sleep 1000 & sleep 1000\n")
    until(commands, number, "RUNNING")
    assert commands.run("scancel", number).returncode == 0
    assert until(commands, number, "CANCELLED").startswith("CANCELLED|None|")


def test_a_signal_reaches_the_script(commands: Commands, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    ready = tmp_path / "ready"
    script = f"{TRUE}trap 'exit 7' USR1\n: >{ready}\nwhile :; do sleep 1 & wait; done\n"
    number = submit(commands, script=script)
    ends = time.monotonic() + HAPPENS_WITHIN
    while not ready.exists():
        assert time.monotonic() < ends
        time.sleep(0.05)
    assert commands.run("scancel", "-b", "-s", "USR1", number).returncode == 0
    assert until(commands, number, "FAILED").startswith("FAILED|NonZeroExitCode|")


def test_a_step_runs_inside_a_job(commands: Commands) -> None:
    number = submit(commands, script=f"{TRUE}sleep 1000\n")
    until(commands, number, "RUNNING")
    inside = ("srun", "--jobid", number, "--overlap", "-Q", "--export=A,PATH")
    spoken = commands.run(*inside, "sh", "-c", "cat; echo $A$B; exit 7", stdin="in\n", A="a", B="b")
    assert (spoken.returncode, spoken.stdout) == (7, "in\na\n")
    assert "task 0: Exited with exit code 7\n" in spoken.stderr
    assert commands.run(*inside, "sh", "-c", "kill -9 $$").returncode == 137
    assert commands.run(*inside, "no-such-program").returncode == 2
    commands.run("scancel", number)
    until(commands, number, "CANCELLED")


def test_no_step_starts_before_its_job(commands: Commands) -> None:
    number = submit(commands, "-H")
    assert shown(commands, number) == "PENDING|JobHeldUser|sbatch|(null)"
    done = commands.run("srun", "--jobid", number, "--overlap", "-Q", "true")
    text = f"srun: error: Unable to confirm allocation for job {number}: Job is pending execution\n"
    assert (done.returncode, done.stderr) == (1, text)
    commands.run("scancel", number)
    assert until(commands, number, "CANCELLED")


def listed(commands: Commands, name: str) -> list[str]:
    words = ("-h", "--array", "-t", "all", "-n", name, "-o", "%i|%T")
    return sorted(commands.run("squeue", *words).stdout.split())


def test_elements_of_an_array_are_cancelled_by_their_number(commands: Commands) -> None:
    number = submit(commands, "-H", "-J", "elements", "--array=0-3")
    assert listed(commands, "elements") == [f"{number}_{one}|PENDING" for one in range(4)]
    assert commands.run("scancel", f"{number}_1", f"{number}_2").returncode == 0
    assert listed(commands, "elements") == [f"{number}_0|PENDING", f"{number}_3|PENDING"]
    # With a name, `scancel` cancels the whole array, even if the command also names one element.
    assert commands.run("scancel", "--name=elements", f"{number}_0").returncode == 0
    assert listed(commands, "elements") == [f"{number}|CANCELLED"]


def test_an_array_is_cancelled_by_its_number(commands: Commands) -> None:
    number = submit(commands, "-H", "-J", "whole", "--array=0-1")
    assert commands.run("scancel", number).returncode == 0
    assert listed(commands, "whole") == [f"{number}_{one}|CANCELLED" for one in range(2)]
    assert commands.run("scancel", f"{number}_1").returncode == 0


def test_oversized_array_is_refused(commands: Commands) -> None:
    done = commands.run("sbatch", *OPTIONS, "--array=0-1001", stdin=TRUE)
    text = "sbatch: error: Batch job submission failed: Invalid job array specification\n"
    assert (done.returncode, done.stderr) == (1, text)


def test_element_has_an_array_number_and_its_own_number(commands: Commands, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    script = f"{TRUE}echo $SLURM_ARRAY_JOB_ID $SLURM_JOB_ID >{tmp_path}/$SLURM_ARRAY_TASK_ID\n"
    number = submit(commands, "-J", "numbers", "--array=0-1", script=script)
    ends = time.monotonic() + HAPPENS_WITHIN
    while listed(commands, "numbers") != [f"{number}_{one}|COMPLETED" for one in range(2)]:
        assert time.monotonic() < ends
        time.sleep(0.05)
    said = [(tmp_path / str(one)).read_text().split() for one in range(2)]
    assert [array for array, _ in said] == [number] * 2
    shown = commands.run("scontrol", "-o", "show", "job", f"{number}_0").stdout
    assert f"JobId={said[0][1]} " in shown


def test_request_beyond_a_node_is_pending_forever(commands: Commands) -> None:
    number = submit(commands, "-c", "64")
    assert shown(commands, number) == "PENDING|PartitionConfig|sbatch|(null)"
    commands.run("scancel", number)


def test_nodes_of_a_partition_are_listed(commands: Commands) -> None:
    nodes = commands.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N|%T|%c|%m|%f|%E|%P|%C")
    assert nodes.stdout.splitlines() == [
        "node1|idle|16|8000|all,node1|none|main*|0/16/0/16",
        "node2|idle|16|8000|all,node2|none|main*|0/16/0/16",
    ]


def test_a_partition_is_described(commands: Commands) -> None:
    text = commands.run("scontrol", "-o", "show", "partition", "main").stdout
    pairs = dict(word.split("=", 1) for word in text.split())
    wanted = {"PartitionName": "main", "State": "UP", "MaxTime": "UNLIMITED", "TotalCPUs": "32"}
    assert pairs.items() >= {**wanted, "TotalNodes": "2", "Nodes": "node[1-2]"}.items()
    missing = commands.run("scontrol", "-o", "show", "partition", "nope")
    assert (missing.returncode, missing.stdout) == (1, "Partition nope not found\n")


def test_version_and_ping_commands_respond(commands: Commands) -> None:
    assert commands.run("squeue", "--version").stdout.startswith("slurm-wlm 2")
    assert commands.run("scontrol", "ping").stdout.endswith(" is UP\n")
