"""The state of a Slurm partition: its hosts, their states with reasons, and its limits.

`sinfo -N` prints a line for each host. The load of a host changes with every job and is ignored, so
allocated hosts count as `up`.
"""

import msgspec

from daemon.runner.drivers.slurm.commands import SlurmCommandFailed, SlurmCommands, rows
from storage.records.node import EngineHost

UP = "up"
_HOSTS = "%N|%T|%c|%m|%f|%E"
_WORK = frozenset({"idle", "mixed", "allocated", "completing", "planned"})
_SIGNS = "*~#!%$@^-"  # suffixes of a state; most of them mean power saving
_OTHERWISE = {"$": "maint", "@": "reboot", "^": "reboot"}
_WORDS = {
    UP: "takes jobs",
    "down": "is down",
    "drain": "accepts no new jobs",
    "drained": "accepts no new jobs",
    "draining": "finishes the running jobs and accepts no new jobs",
    "fail": "accepts no new jobs because it is about to fail",
    "failing": "finishes the running jobs and accepts no new jobs because it is about to fail",
    "error": "is in error",
    "maint": "is being maintained",
    "reserved": "is reserved",
    "reboot": "is being restarted",
    "powered_down": "is switched off",
    "powering_down": "is being switched off",
    "unknown": "is not known to the controller yet",
    "future": "does not exist yet",
}
_SILENT = "*"
_LONGEST = 200  # characters of a reason, a free text of the cluster's operators
_NOTHING = frozenset({"none", "(null)", "n/a", ""})
# States of a partition that accepts jobs, at least into its queue.
_OPEN = frozenset({"UP", "DOWN"})


class PartitionNotFound(SlurmCommandFailed):
    """The cluster has no partition of this name, or no host in it."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: its hosts by name, its state, and its time limit as Slurm prints it.

    `version` is the version of the cluster's programs.
    """

    hosts: list[EngineHost]
    version: str = ""
    state: str = "UP"
    max_time: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether the partition accepts new jobs, at least into its queue."""
        return self.state in _OPEN

    @property
    def working(self) -> list[EngineHost]:
        """Return the hosts on which jobs can start."""
        return [host for host in self.hosts if host.state == UP]

    @property
    def largest(self) -> EngineHost | None:
        """Return the host with the most cores, then the most memory, in any state."""
        return max(self.hosts, key=lambda host: (host.cores, host.memory_mb), default=None)


async def query_partition(tools: SlurmCommands, name: str) -> Partition:
    """Query a partition. Raises `SlurmCommandFailed`, `PartitionNotFound`."""
    hosts = partition_hosts(
        await tools.run("sinfo", "-h", "-N", f"--partition={name}", f"--format={_HOSTS}")
    )
    if not hosts:
        raise PartitionNotFound(
            f"the cluster has no partition {name!r}, or no host in it: compare with the output of sinfo"
        )
    fields = fields_of(await tools.run("scontrol", "-o", "show", "partition", name))
    return Partition(
        hosts=hosts,
        version=(await tools.run("sinfo", "--version")).strip().rpartition(" ")[2],
        state=fields.get("State", "UP"),
        max_time=fields.get("MaxTime", ""),
    )


def partition_hosts(text: str) -> list[EngineHost]:
    """Parse the output of `sinfo`; return its hosts, sorted by name. Ignore other lines."""
    hosts_by_name = {}
    for fields in rows(text):
        name, state, cores, memory, features, *rest = [*fields, *[""] * 5]
        if not (name and cores.isdecimal() and memory.isdecimal()):
            continue
        why = _reason("|".join(rest).strip("|"))
        hosts_by_name[name] = EngineHost(
            name=name,
            state=_state(state),
            reason=why,
            description=described(_state(state), why),
            cores=int(cores),
            memory_mb=int(memory),
            features=sorted({part for part in features.split(",") if part not in _NOTHING}),
        )
    return [hosts_by_name[name] for name in sorted(hosts_by_name)]


def _reason(text: str) -> str:
    """Return the reason for a host's state as one printable, shortened line."""
    states = "".join(character for character in text if character.isprintable()).strip()
    return "" if states.lower() in _NOTHING else states[:_LONGEST]


def _state(text: str) -> str:
    """Return a host's state, ignoring load and power saving: `up`, or Slurm's word."""
    word = text.strip().lower().rstrip(_SIGNS)
    signs = text.strip()[len(word) :]
    state_word = next((state for sign, state in _OTHERWISE.items() if sign in signs), word)
    return (UP if state_word in _WORK else state_word) + (_SILENT if _SILENT in signs else "")


def described(state: str, reason: str) -> str:
    """Return a description of a host's state, worded to follow the host's name.

    >>> described("drained", "disk is full")
    'accepts no new jobs: disk is full'
    """
    word = state.rstrip(_SILENT)
    text = _WORDS.get(word, f"is {word}")
    if word != state:
        text = f"{text}, and does not respond" if word != UP else "does not respond"
    return f"{text}: {reason}" if reason else text


def fields_of(line: str) -> dict[str, str]:
    """Parse one line of `scontrol -o` output into its `Key=Value` fields."""
    pairs = (word.partition("=") for word in line.split())
    return {key: value for key, sign, value in pairs if sign}
