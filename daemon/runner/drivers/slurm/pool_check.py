"""Check whether a partition is usable: programs, controller, partition, hosts, limits.

The checks use the daemon's own search path and privileges, because the daemon submits tasks with
these (docs/cluster.md).
"""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from daemon.config.settings import is_loopback
from daemon.runner.core.launcher_policy import PROGRAMS
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed, SlurmCommands, rows
from daemon.runner.drivers.slurm.partition import fields_of
from storage.records.pool_check import PoolFinding

# Error messages of Slurm's programs, with their meaning and the fix.
_MEANINGS = {
    "munge": (
        "munge does not answer on the daemon's host: start it there (systemctl start munge), "
        "with the key that all hosts of the cluster have"
    ),
    "configuration source": (
        "the programs find no configuration of the cluster: put its slurm.conf into /etc/slurm, or "
        "name it in cluster_config"
    ),
    "configuration file": (
        "the programs cannot use their configuration: check slurm.conf, or the file in "
        "cluster_config"
    ),
    "Unable to contact": (
        "the controller does not answer: check whether slurmctld runs, and whether this host can "
        "connect to it"
    ),
    "did not answer": "the controller takes too long to answer: check slurmctld and the network",
    "not found": "the cluster has no such partition: compare with the output of sinfo -s",
    "Access/permission denied": "the cluster does not let the daemon's user do this",
}
_WORKS = ("idle", "mixed", "allocated", "completing", "planned")
_HOSTS, _FIELDS = "%N|%T|%c|%m|%E", 5
_TOLD_HOSTS = 5


async def check_pool(tools: SlurmCommands, partition: str, url: str) -> list[PoolFinding]:
    """Return the findings up to the first failed check.

    `url` is the daemon's address as seen from the hosts of the cluster.
    """
    findings = []
    try:
        async for step, message in _steps(tools, partition, url):
            findings.append(PoolFinding(step=step, good=True, message=message))
    except _NotGood as fault:
        findings.append(PoolFinding(step=fault.step, good=False, message=str(fault)))
    return findings


class _NotGood(Exception):
    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


async def _steps(tools: SlurmCommands, partition: str, url: str) -> AsyncIterator[tuple[str, str]]:
    yield "programs", _programs(tools)
    yield "version", (await _run_step(tools, "version", "sinfo", "--version")).strip()
    output = await _run_step(tools, "partition", "scontrol", "-o", "show", "partition", partition)
    partition_fields = fields_of(output)
    yield "partition", _partition(partition, partition_fields)
    listed = await _run_step(
        tools, "hosts", "sinfo", "-h", "-N", f"--partition={partition}", f"--format={_HOSTS}"
    )
    yield "hosts", _hosts(listed)
    settings = await _run_step(tools, "limits", "scontrol", "show", "config")
    yield "limits", _limits(partition_fields, settings)
    yield "address", _address(url)


def _programs(tools: SlurmCommands) -> str:
    missing = [name for name in PROGRAMS if tools.find(name) is None]
    if missing:
        raise _NotGood(
            "programs",
            f"{', '.join(missing)} cannot be found in {tools.path}, the daemon's search path: "
            "install the cluster's client programs (Debian: slurm-client), or add the directory of "
            "these programs to the daemon's PATH",
        )
    return f"{', '.join(PROGRAMS)} are in {tools.path}"


async def _run_step(tools: SlurmCommands, step: str, program: str, *words: str) -> str:
    try:
        return await tools.run(program, *words)
    except SlurmCommandFailed as error:
        raise _NotGood(step, explain_error(str(error))) from error


def explain_error(message: str) -> str:
    """Return the meaning of a program's error, if known, and the last line of the error."""
    last = message.strip().rpartition("\n")[2]
    for sign, words in _MEANINGS.items():
        if sign.lower() in message.lower():
            return f"{words} ({last})"
    return last


def _partition(name: str, fields: dict[str, str]) -> str:
    state = fields.get("State", "unknown")
    if state != "UP":
        raise _NotGood(
            "partition",
            f"{name} is {state}, so jobs would not start: see scontrol show partition {name}",
        )
    return (
        f"{name} is up, with {fields.get('TotalNodes')} hosts and {fields.get('TotalCPUs')} cores"
    )


def _hosts(listed: str) -> str:
    hosts = [fields for fields in rows(listed) if len(fields) == _FIELDS]
    able = [fields for fields in hosts if fields[1].startswith(_WORKS) and fields[1][-1] != "*"]
    rejecting_hosts = [
        f"{fields[0]} is {fields[1]} ({fields[4]})" for fields in hosts if fields not in able
    ]
    host_list = "; ".join(rejecting_hosts[:_TOLD_HOSTS])
    if not able:
        raise _NotGood("hosts", f"no host accepts jobs: {host_list or 'the partition has none'}")
    largest = max(able, key=lambda fields: (int(fields[2]), int(fields[3])))
    words = f"{len(able)} of {len(hosts)} accept jobs, the largest with {largest[2]} cores and {largest[3]} MB"
    return f"{words}; {host_list}" if host_list else words


def _limits(fields: dict[str, str], settings: str) -> str:
    """Return a text with the limits on jobs, and with settings that hide or delay jobs."""
    pairs = (line.partition("=") for line in settings.splitlines())
    cluster_settings = {name.strip(): value.strip() for name, _, value in pairs}
    words = [
        f"the time limit of jobs is {fields.get('MaxTime', '?').lower()}, "
        f"and the cluster holds at most {cluster_settings.get('MaxJobCount', '?')} jobs",
        f"an ended job is remembered for {cluster_settings.get('MinJobAge', '?')}",
    ]
    if "jobs" in cluster_settings.get("PrivateData", ""):
        words.append(
            "the cluster hides jobs of other users (PrivateData): the daemon's user must be an "
            "operator (sacctmgr modify user NAME set adminlevel=operator), if it is not root"
        )
    if "batch_sched_delay=0" not in cluster_settings.get("SchedulerParameters", ""):
        words.append("jobs begin up to 3 s late (SchedulerParameters=batch_sched_delay=0 helps)")
    return "; ".join(words)


def _address(url: str) -> str:
    if is_loopback(urlsplit(url).hostname or ""):
        return f"{url}: only this host can reach it, not other hosts of the cluster"
    return f"hosts report to {url}"
