"""Test the Debian package under a real systemd: `check.py ROOT PACKAGE GROUPS`.

ROOT is a Debian root file system, which the test modifies. GROUPS is the mount point of cgroup v2.
Each step prints its result, and the test stops at the first failure.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 300  # timeout of each wait in seconds
TASKS, RESTARTS = 50, 20
# The commands in docs/service.md that restore the layout of an older data directory.
BACK = re.compile(r"^    cd /var/lib/steward\n(?:^    .*\n)+", re.MULTILINE)
# Owner, group and mode of installed, created or moved files.
MODES = {
    "/etc/steward": "root steward 750",
    "/etc/steward/steward.toml": "root steward 640",
    "/etc/steward/root.key": "root root 600",
    "/var/lib/steward": "root root 711",
    "/var/lib/steward/store": "steward steward 700",
    "/var/lib/steward/tasks": "root root 711",
}
SLEEPER = "sleep 1000000"
JOB = {
    "ID": "sleepers",
    "Datacenters": ["*"],
    "TaskGroups": [
        {
            "Name": "g",
            "Count": TASKS,
            "EphemeralDisk": {"SizeMB": 20},
            "Tasks": [
                {
                    "Name": "t",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/sleep", "args": SLEEPER.split()[1:]},
                    "Resources": {"CPU": 1, "MemoryMB": 10},
                    "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
                }
            ],
        }
    ],
}


class Machine:
    """A container that runs systemd as process 1."""

    def __init__(self, root: Path, groups: Path) -> None:
        self.root, self._groups = root, groups
        self._group = groups / f"steward-check-{os.getpid()}"
        self._front: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def boot(self) -> None:
        """Start the container, and wait until systemd has started."""
        self._group.mkdir(exist_ok=True)
        self._front = subprocess.Popen(
            [
                *("sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', self._group),
                *("unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup"),
                *("--kill-child", "--propagation", "private", "sh", HERE / "boot.sh", self.root),
            ],
            start_new_session=True,
        )
        until("systemd has started", self._has_started)
        # A cgroup that contains a process cannot delegate controllers, so move the process away.
        (self._groups / "cgroup.procs").write_text(str(self._front.pid))
        self.run("ip", "link", "set", "lo", "up", inside=False)

    def _has_started(self) -> bool:
        if self._front is None or self._front.poll() is not None:
            raise SystemExit("cannot create the namespaces of the container")
        children = Path(f"/proc/{self._front.pid}/task/{self._front.pid}/children").read_text()
        if not children or Path(f"/proc/{children.split()[0]}/comm").read_text() != "systemd\n":
            return False
        self.pid = int(children.split()[0])
        return self.run("systemctl", "is-system-running", check=False) in ("running", "degraded")

    def crash(self) -> None:
        """Kill all processes of the container at the same time, as a power failure does."""
        if self._front is None:
            return
        if self.pid:
            with suppress(ProcessLookupError):  # the process has ended
                os.kill(self.pid, signal.SIGKILL)
        else:
            self._front.kill()
        self._front.wait()
        self._front, self.pid = None, 0
        until("the cgroups of the container are deleted", self._is_tidied)

    def _is_tidied(self) -> bool:
        for place, _, _ in os.walk(self._group, topdown=False):
            with suppress(OSError):  # the cgroup still has processes; the caller tries again
                os.rmdir(place)
        return not self._group.exists()

    def entering(self, *, inside: bool = True) -> list[str]:
        """Return the command line prefix that runs a command in the container's namespaces.

        If `inside` is false, the command sees the files of the host.
        """
        which = ["-a", "-r", "-w"] if inside else ["-n"]
        return ["nsenter", "-t", str(self.pid), *which]

    def run(self, *words: str, check: bool = True, inside: bool = True) -> str:
        """Run a command in the container and return its output.

        With `check`, a failed command ends the script. If `inside` is false, the command sees the
        files of the host.
        """
        done = subprocess.run(
            [*self.entering(inside=inside), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"{' '.join(words)}: exit status {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def show(self, name: str, unit: str = "steward") -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit)

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  # JSON
        """Send a request to the daemon as an operator, and return the response."""
        words = ["curl", "-sS", "--unix-socket", "/run/steward/steward.sock", "-X", method]
        if body is not None:
            words += ["-d", json.dumps(body)]
        response = self.run(*words, f"http://localhost{path}")
        try:
            return json.loads(response)
        except ValueError:
            raise SystemExit(f"{method} {path}: {response}") from None

    def tasks(self) -> list[str]:
        """Return the process IDs of the tasks."""
        return sorted(self.run("pgrep", "-f", f"^[^ ]*{SLEEPER}$", check=False).split())


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds. Exit after a time limit, with `what` in the message."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"timeout after {PATIENCE} s: {what}")
        time.sleep(0.1)


def proved(what: str) -> None:
    """Print `what` as a successful check."""
    print(f"    {what}", flush=True)


def expect(what: str, *, holds: bool) -> None:
    """Print the fact `what` if it holds; otherwise exit with an error."""
    if not holds:
        raise SystemExit(f"check failed: {what}")
    proved(what)


# ---- checks -------------------------------------------------------------------------------


def installs(machine: Machine, package: Path) -> None:
    """Install the package, and check that this starts and enables no unit."""
    shutil.copy(package, machine.root / "steward.deb")
    machine.run("dpkg", "-i", "/steward.deb")
    expect(
        f"{machine.run('systemctl', '--version').splitlines()[0]}: the installation starts no unit",
        holds=machine.run("systemctl", "is-active", "steward", check=False) == "inactive"
        and machine.run("systemctl", "is-enabled", "steward", check=False) == "disabled",
    )


def starts(machine: Machine) -> None:
    """Check that `systemctl start` returns only when the daemon answers requests."""
    settings = machine.root / "etc/steward/steward.toml"
    settings.write_text(f"raw_exec = true\n{settings.read_text()}")
    machine.run("systemctl", "enable", "--now", "steward")
    leader = machine.ask("GET", "/v1/status/leader")
    expect(
        f"started: {machine.show('StatusText')}, leader {leader}",
        holds="answers at" in machine.show("StatusText"),
    )
    expect(
        "steward-tasks.service is active",
        holds=machine.show("ActiveState", "steward-tasks") == "active",
    )
    machine.ask("PUT", "/v1/jobs", {"Job": JOB})
    until(f"{TASKS} tasks run", lambda: len(machine.tasks()) == TASKS)
    proved(f"{TASKS} tasks run")


def keeps_apart(machine: Machine) -> None:
    """Check file permissions, and check that set-user-ID files of tasks have no effect."""
    modes = {place: machine.run("stat", "-c", "%U %G %a", place) for place in MODES}
    expect(f"owners and modes are correct: {modes}", holds=modes == MODES)
    options = machine.run("findmnt", "-no", "OPTIONS", "/var/lib/steward/tasks").split(",")
    expect("task directories are mounted nosuid,nodev", holds={"nosuid", "nodev"} <= {*options})


def gives_root_away(machine: Machine) -> None:
    """Check that the daemon runs as a user without capabilities, and its launcher as root."""
    pid = machine.show("MainPID")
    status = dict(
        line.split(":", 1) for line in machine.run("cat", f"/proc/{pid}/status").splitlines()
    )
    uid = machine.run("id", "-u", "steward")
    privileges = {
        name: status[name].split()[0] for name in ("Uid", "CapEff", "NoNewPrivs", "Seccomp")
    }
    expected = {"Uid": uid, "CapEff": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    expect(
        f"the daemon runs as a user without capabilities: {privileges}",
        holds=privileges == expected,
    )
    launcher = machine.run("pgrep", "-P", pid, "-x", "steward-launch")
    expect(
        "the launcher runs as root",
        holds=machine.run("stat", "-c", "%u", f"/proc/{launcher}") == "0",
    )
    node = machine.ask("GET", "/v1/nodes")[0]["ID"]
    attributes = machine.ask("GET", f"/v1/node/{node}")["Attributes"]
    expect(
        "the node reports privilege separation", holds=attributes["launcher.separated"] == "true"
    )
    machine.run("steward", "operator", "check")
    machine.run("steward", "operator", "snapshot", "save", "/root/one.snap")
    expect(
        "commands of root leave no files of root in the store",
        holds=not machine.run("find", "/var/lib/steward/store", "-not", "-user", "steward"),
    )
    score = machine.run("systemd-analyze", "security", "--no-pager", "steward", check=False)
    proved(score.splitlines()[-1])


def keeps_root(machine: Machine) -> None:
    """Check the change to a daemon that runs as root, and back, while tasks run."""
    settings = machine.root / "etc/steward/steward.toml"
    text = settings.read_text()
    with kept(machine, 'restarted with user = "root"'):
        settings.write_text(f'user = "root"\n{text}')
        machine.run("systemctl", "restart", "steward")
    owner = machine.run("stat", "-c", "%U", "/var/lib/steward/store")
    expect("root owns the store", holds=owner == "root")
    with kept(machine, "restarted without the setting user"):
        settings.write_text(text)
        machine.run("systemctl", "restart", "steward")


def moves(machine: Machine) -> None:
    """Check that tasks keep running when the data directory changes between old and new layout."""
    [back] = BACK.findall((HERE.parent.parent / "docs/service.md").read_text())
    with kept(machine, "restored the old layout, and started the new version"):
        machine.run("systemctl", "stop", "steward")
        machine.run("sh", "-ec", back)
        machine.run("systemctl", "start", "steward")
    expect(
        "the store is in the new layout", holds=(machine.root / "var/lib/steward/store").is_dir()
    )


def reloads(machine: Machine) -> None:
    """Check that a reload keeps the process and reads the settings again."""
    before, settings = machine.show("MainPID"), machine.root / "etc/steward/steward.toml"
    text = settings.read_text()
    settings.write_text(f'log_level = "debug"\n{text}')
    machine.run("systemctl", "reload", "steward")
    read = "journalctl -u steward -o cat | grep -q 'reloaded the certificate and the settings'"
    until("the log reports the reload", lambda: not machine.run("sh", "-c", read))
    settings.write_text(text)
    machine.run("systemctl", "reload", "steward")
    expect("a reload keeps the process", holds=machine.show("MainPID") == before)


@contextmanager
def kept(machine: Machine, what: str) -> Iterator[None]:
    """Check that after the block a new daemon runs, and the task processes are unchanged.

    `what` names the check in messages.
    """
    tasks, daemon = machine.tasks(), machine.show("MainPID")
    yield
    until(
        f"{what}: a new daemon runs",
        lambda: (
            machine.show("MainPID") not in ("0", daemon) and machine.show("ActiveState") == "active"
        ),
    )
    listed = machine.ask("GET", "/v1/job/sleepers/allocations")
    running = [alloc for alloc in listed if alloc["ClientStatus"] == "running"]
    expect(
        f"{what}: new daemon, same {len(tasks)} processes, {len(running)} running allocations",
        holds=machine.tasks() == tasks and len(running) == TASKS == len(tasks),
    )


def survives(machine: Machine) -> None:
    """Check that tasks survive a restart, a kill and a daemon that hangs."""
    with kept(machine, "restarted"):
        machine.run("systemctl", "restart", "steward")
    with kept(machine, "killed"):
        machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "steward")
    drop_in = machine.root / "run-steward.conf"
    drop_in.write_text("[Service]\nWatchdogSec=3\nTimeoutAbortSec=1\n")
    machine.run("mkdir", "-p", "/run/systemd/system/steward.service.d")
    machine.run("mv", f"/{drop_in.name}", "/run/systemd/system/steward.service.d/watchdog.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "steward")
    with kept(machine, "hung, and replaced by the watchdog"):
        machine.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", "steward")
    expect(
        "the log names the watchdog",
        holds="watchdog" in machine.run("journalctl", "-u", "steward", "-o", "cat").lower(),
    )
    machine.run("rm", "-r", "/run/systemd/system/steward.service.d")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "steward")


def survives_with_controllers(machine: Machine) -> None:
    """Check that a controller enabled in the tasks' cgroup does not prevent a start."""
    place = "/sys/fs/cgroup/system.slice/steward-tasks.service"
    offered = machine.run("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    if not offered:
        proved("skipped: cgroup v2 has no controllers on this host")
        return
    machine.run("mkdir", f"{place}/held")
    for group in ("/sys/fs/cgroup", "/sys/fs/cgroup/system.slice", place):
        machine.run("sh", "-c", f"echo +{offered[0]} >{group}/cgroup.subtree_control")
    start = f"echo 0 >{place}/held/cgroup.procs && exec sleep 2000000"
    subprocess.Popen([*machine.entering(), "setsid", "sh", "-c", start])
    until(
        "a process is in the cgroup", lambda: bool(machine.run("cat", f"{place}/held/cgroup.procs"))
    )
    pid_in_cgroup = machine.run("cat", f"{place}/held/cgroup.procs")
    for unit in ("steward", "steward-tasks"):
        with kept(machine, f"restarted {unit} with the controller {offered[0]} enabled"):
            machine.run("systemctl", "restart", unit, check=False)
            machine.run("systemctl", "restart", "steward")
    machine.run("systemctl", "daemon-reexec")
    expect(
        "the process in the cgroup keeps running",
        holds=machine.run("cat", f"{place}/held/cgroup.procs") == pid_in_cgroup,
    )
    machine.run("kill", pid_in_cgroup)


@contextmanager
def hammered(machine: Machine, what: str) -> Iterator[None]:
    """Check that a client that sends requests continuously gets all responses during the block.

    `what` names the check in messages.
    """
    stop = machine.root / "enough"
    words = [
        *machine.entering(inside=False),
        sys.executable,
        "-I",
        HERE / "hammer.py",
        "4646",
        stop,
    ]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        stop.touch()
        output, _ = client.communicate()
        stop.unlink()
    report = json.loads(output)
    expect(
        f"{what}: {report['answers']} responses, {len(report['lost'])} failed {report['lost'][:3]}, "
        f"longest response time {report['longest']} s",
        holds=report["answers"] > 0 and not report["lost"],
    )


def holds_the_port(machine: Machine) -> None:
    """Check that with steward.socket, restarts only delay the requests of clients."""
    machine.run("systemctl", "stop", "steward")
    machine.run("systemctl", "enable", "--now", "steward.socket")
    machine.run("systemctl", "start", "steward")
    with kept(machine, f"restarted {RESTARTS} times"), hammered(machine, "during restarts"):
        for _ in range(RESTARTS):
            machine.run("systemctl", "restart", "steward")


def upgrades(machine: Machine) -> None:
    """Check that a package upgrade interrupts neither tasks nor clients."""
    newer = machine.root / "newer"
    subprocess.run(["dpkg-deb", "-R", machine.root / "steward.deb", newer], check=True)
    control = newer / "DEBIAN/control"
    lines = control.read_text().splitlines(keepends=True)
    version = next(line for line in lines if line.startswith("Version: ")).strip()
    control.write_text("".join(lines).replace(version, f"{version}+newer"))
    target = machine.root / "newer.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", newer, target],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with kept(machine, "upgraded"), hammered(machine, "during the upgrade"):
        machine.run("dpkg", "-i", "/newer.deb")
    expect(
        "the new version is installed",
        holds=machine.run("dpkg-query", "-Wf", "${Version}", "steward").endswith("+newer"),
    )


def comes_back(machine: Machine) -> None:
    """Check that a host recovers from a power failure automatically."""
    machine.crash()
    machine.boot()
    until("the daemon has started", lambda: machine.show("ActiveState") == "active")
    until(f"{TASKS} tasks run again", lambda: len(machine.tasks()) == TASKS)
    proved(f"after a power failure, the daemon and {TASKS} tasks start again")


def goes(machine: Machine) -> None:
    """Check that a removal keeps data and tasks, and that a purge deletes both."""
    tasks, store = machine.tasks(), machine.root / "var/lib/steward/store/steward.db"
    machine.run("dpkg", "-r", "steward")
    expect("removal: data and tasks remain", holds=store.exists() and machine.tasks() == tasks)
    machine.run("dpkg", "-i", "/steward.deb")
    machine.run("systemctl", "start", "steward")
    listed = machine.ask("GET", "/v1/job/sleepers/allocations")
    expect(
        f"reinstallation: {len(listed)} allocations, same tasks",
        holds=machine.tasks() == tasks,
    )
    machine.run("dpkg", "-P", "steward")
    left = [
        path
        for path in ("var/lib/steward", "etc/steward", "usr/lib/steward", "usr/bin/steward")
        if os.path.lexists(machine.root / path)
    ]
    until("all tasks have ended", lambda: not machine.tasks())
    expect(f"purge: no files remain {left}", holds=not left)


def main(root: Path, package: Path, groups: Path) -> None:
    """Run all checks in one container."""
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (root / "etc/systemd/system/systemd-firstboot.service").symlink_to("/dev/null")
    for name in (groups / "cgroup.controllers").read_text().split():
        with suppress(OSError):  # not every controller can be delegated
            (groups / "cgroup.subtree_control").write_text(f"+{name}")
    machine = Machine(root, groups)
    try:
        machine.boot()
        installs(machine, package)
        starts(machine)
        keeps_apart(machine)
        gives_root_away(machine)
        reloads(machine)
        survives(machine)
        moves(machine)
        keeps_apart(machine)
        keeps_root(machine)
        keeps_apart(machine)
        survives_with_controllers(machine)
        holds_the_port(machine)
        upgrades(machine)
        comes_back(machine)
        goes(machine)
    except SystemExit:
        if machine.pid:
            print(machine.run("journalctl", "-n", "40", "--no-pager", check=False), file=sys.stderr)
        raise
    finally:
        machine.crash()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
