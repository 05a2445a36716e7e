"""A real cluster on this host: munged, a controller and two nodes, as child processes.

All files are in one directory, and all ports are free ones. The cluster needs neither a service
manager, control groups nor root (docs/cluster.md, "A cluster to try it with").
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid

from tests.time_limits import HAPPENS_WITHIN

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "curl")
PATH = os.pathsep.join([*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin"])
NODES = ("node1", "node2")
PORTS = range(20_000, 32_000)  # below the kernel's range for outgoing connections
PAUSE = 0.05  # seconds between two polls of a state that has no notification


def missing() -> list[str]:
    """Return the programs of a cluster that are not on this host."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Cluster:
    """Two nodes with 16 cores and 8000 MB each, as far as the controller knows."""

    def __init__(self, directory: Path, draw: random.Random) -> None:
        self.directory, self._draw = directory, draw
        self.config = directory / "slurm.conf"
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    # ---- start and stop ------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, and return when both nodes accept jobs."""
        for name in ("", "ctld", *NODES):
            (self.directory / name).mkdir(mode=0o755, exist_ok=True)
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(self._draw.randbytes(128))
        key.chmod(0o400)
        self._start_munge()
        self.config.write_text(self._settings())
        # Without this setting, a node searches for a mounted cgroup file system, and exits if there
        # is none.
        (self.directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.until("both nodes are idle", self._all_idle)

    def _start_munge(self) -> None:
        places = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid"}
        places |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        words = [f"--{name}={self.directory / file}" for name, file in places.items()]
        self._spawn("munged", "--foreground", "--force", *words)
        self.until("munge listens", (self.directory / "munge.sock").exists)

    def start_controller(self) -> None:
        """Start the controller, and wait until `answers` succeeds."""
        self._spawn("slurmctld", "-D", "-f", str(self.config))
        self.until("the controller answers", self.answers)

    def restart_controller(self) -> None:
        """Stop the controller regularly, so that it stores all jobs, even just ended ones.

        Start it again.
        """
        self.end("slurmctld")
        self.start_controller()

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._spawn("slurmd", "-D", "-N", node, "-f", str(self.config), name=node)

    def _spawn(self, program: str, *words: str, name: str = "") -> None:
        path = shutil.which(program, path=PATH)
        assert path is not None, program
        name = name or program
        with (self.directory / f"{name}.said").open("ab") as said:
            self.children[name] = subprocess.Popen(
                [path, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.environment(),
                start_new_session=True,
            )

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Stop one of the children, regularly or like a crash."""
        child = self.children.pop(name)
        child.send_signal(number)
        child.wait(HAPPENS_WITHIN)

    def mend(self) -> None:
        """Start the missing daemons."""
        if "slurmctld" not in self.children:
            self.start_controller()
        for node in NODES:
            if node not in self.children:
                self.start_node(node)

    def has_saved(self, alloc_id: str) -> bool:
        """Return whether a controller that is killed now would know a job after its restart."""
        file = self.directory / "ctld" / "job_state"
        return file.exists() and f"alloc-{alloc_id}".encode() in file.read_bytes()

    def clear(self) -> None:
        """End all jobs, and let all hosts accept jobs again."""
        self.run("scancel", "--me")
        self.clear_hosts()

    def clear_hosts(self) -> None:
        """Let all hosts accept jobs again, and return when nothing runs there."""
        self.until("both nodes are idle", self._resumed)

    def _resumed(self) -> bool:
        for node, state in self.nodes().items():
            if state.startswith(("drain", "down")):
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
        return self._all_idle()

    def close(self) -> None:
        """Stop everything, including jobs."""
        for name in (*NODES, "slurmctld", "munged"):
            if name in self.children:
                self.end(name, signal.SIGKILL)
        for pid in self._left():
            os.kill(pid, signal.SIGKILL)

    def _left(self) -> Iterator[int]:
        mark = os.fsencode(self.directory)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    found = mark in (entry / "environ").read_bytes()
                except OSError:  # the process has ended, or belongs to another user
                    continue
                if found:
                    yield int(entry.name)

    # ---- programs -------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment in which the cluster's programs find the cluster."""
        return {"PATH": PATH, "LC_ALL": "C", "SLURM_CONF": str(self.config)}

    def run(self, *words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the cluster to its end."""
        return subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=HAPPENS_WITHIN,
            check=False,
            env={**self.environment(), **more},
        )

    def answers(self) -> bool:
        """Return whether the controller responds."""
        return "is UP" in self.run("scontrol", "ping").stdout

    def nodes(self) -> dict[str, str]:
        """Return the state of each node."""
        said = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout
        return dict(line.split(maxsplit=1) for line in said.splitlines())

    def jobs(self) -> list[list[str]]:
        """Return id, state, reason and name of all jobs that the controller remembers."""
        said = self.run("squeue", "-h", "-t", "all", "-o", "%i|%T|%r|%j").stdout
        return [line.split("|") for line in said.splitlines()]

    def until(self, what: str, happened: Callable[[], bool]) -> None:
        """Poll until a condition holds: a cluster sends no notifications."""
        ends = time.monotonic() + HAPPENS_WITHIN
        while not happened():
            said = {name: child.returncode for name, child in self.children.items() if child.poll()}
            assert time.monotonic() < ends, (
                f"timeout: {what}; {self.nodes()} {self.jobs()}; ended: {said}; {self.tails()}"
            )
            time.sleep(PAUSE)

    def tails(self) -> str:
        """Return the last lines of the logs of its daemons."""
        logs = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.said")])
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def _all_idle(self) -> bool:
        return self.nodes() == dict.fromkeys(NODES, "idle")

    # ---- settings --------------------------------------------------------------------------

    def _settings(self) -> str:
        user = getpwuid(os.getuid()).pw_name
        controller, *ports = free_ports(self._draw, 1 + len(NODES))
        place = self.directory
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=16"
            f" RealMemory=8000 Features=all,{node}"
            for node, port in zip(NODES, ports, strict=True)
        )
        return f"""\
ClusterName=ci
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
StateSaveLocation={place}/ctld
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/ctld.pid
SlurmctldLogFile={place}/ctld.log
SlurmdPidFile={place}/%n.pid
SlurmdLogFile={place}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=30
KillWait=5
SchedulerParameters=batch_sched_delay=0,bf_interval=2
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=node2 MaxTime=1 State=UP
"""


def free_ports(draw: random.Random, count: int) -> list[int]:
    """Return free ports outside of the range for outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = draw.choice(PORTS)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) and port not in found:
                found.append(port)
    return found


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """Run a cluster while the block runs, in a directory with a short name: sockets need one."""
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))
    directory.chmod(0o755)
    cluster = Cluster(directory, random.Random(os.urandom(16)))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)
