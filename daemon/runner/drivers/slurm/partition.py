"""What a cluster says of a partition: its hosts, how they are and why, and what it takes.

Facts, Slurm, section 6: `sinfo -N` has a line for each host. How busy a host is changes with every
job and matters to nobody here, so hosts that work are all `up`.
"""

import msgspec

from daemon.runner.drivers.slurm.tools import ToolFailed, Tools, rows
from storage.records.node import EngineHost

UP = "up"
_HOSTS = "%N|%T|%c|%m|%f|%E"
_WORK = frozenset({"idle", "mixed", "allocated", "completing", "planned"})
_SIGNS = "*~#!%$@^-"  # behind a state; most say that the cluster saves power
_OTHERWISE = {"$": "maint", "@": "reboot", "^": "reboot"}
_WORDS = {
    UP: "takes jobs",
    "down": "is down",
    "drain": "takes no new jobs",
    "drained": "takes no new jobs",
    "draining": "finishes what runs there and takes no new jobs",
    "fail": "takes no new jobs, for it is about to fail",
    "failing": "finishes what runs there and takes no new jobs, for it is about to fail",
    "error": "is in error",
    "maint": "is being maintained",
    "reserved": "is reserved",
    "reboot": "is being started anew",
    "powered_down": "is switched off",
    "powering_down": "is being switched off",
    "unknown": "is not known to the controller yet",
    "future": "is not there yet",
}
_SILENT = "*"
_LONGEST = 200  # letters of a reason, which anybody may write who may drain a host
_NOTHING = frozenset({"none", "(null)", "n/a", ""})
_OPEN = frozenset({"UP", "DOWN"})  # of a partition: what is submitted waits at least


class NoPartition(ToolFailed):
    """The cluster answers, and has no such partition, or no host in it."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: its hosts by name, its state, and the longest that a job may run (its words).

    `version` is the one of the cluster's programs.
    """

    hosts: list[EngineHost]
    version: str = ""
    state: str = "UP"
    max_time: str = ""

    @property
    def is_open(self) -> bool:
        """Tell whether it takes new jobs, if only to let them wait."""
        return self.state in _OPEN

    @property
    def working(self) -> list[EngineHost]:
        """Return the hosts on which jobs can be started."""
        return [host for host in self.hosts if host.state == UP]

    @property
    def largest(self) -> EngineHost | None:
        """Return the host with the most cores, then the most memory, whether or not it works now."""
        return max(self.hosts, key=lambda one: (one.cores, one.memory_mb), default=None)


async def look(tools: Tools, name: str) -> Partition:
    """Ask the cluster for a partition. Raises `ToolFailed`, `NoPartition`."""
    hosts = hosts_of(await tools.run("sinfo", "-h", "-N", "-p", name, "-o", _HOSTS))
    if not hosts:
        raise NoPartition(
            f"the cluster has no partition {name!r}, or no host in it: compare with what sinfo prints"
        )
    said = fields_of(await tools.run("scontrol", "-o", "show", "partition", name))
    return Partition(
        hosts=hosts,
        version=(await tools.run("sinfo", "--version")).strip().rpartition(" ")[2],
        state=said.get("State", "UP"),
        max_time=said.get("MaxTime", ""),
    )


def hosts_of(text: str) -> list[EngineHost]:
    """Return the hosts that `sinfo` has printed, by name; lines of another form are passed over."""
    found = {}
    for fields in rows(text):
        name, state, cores, memory, features, *rest = [*fields, *[""] * 5]
        if not (name and cores.isdecimal() and memory.isdecimal()):
            continue
        why = _reason("|".join(rest).strip("|"))
        found[name] = EngineHost(
            name=name,
            state=_state(state),
            reason=why,
            description=described(_state(state), why),
            cores=int(cores),
            memory_mb=int(memory),
            features=sorted({one for one in features.split(",") if one not in _NOTHING}),
        )
    return [found[name] for name in sorted(found)]


def _reason(text: str) -> str:
    """Return why a host is as it is, in letters that a screen shows and no more than a line."""
    shown = "".join(one for one in text if one.isprintable()).strip()
    return "" if shown.lower() in _NOTHING else shown[:_LONGEST]


def _state(text: str) -> str:
    """Return the state of a host without how busy or awake it is: `up`, or the cluster's word."""
    word = text.strip().lower().rstrip(_SIGNS)
    signs = text.strip()[len(word) :]
    found = next((state for sign, state in _OTHERWISE.items() if sign in signs), word)
    return (UP if found in _WORK else found) + (_SILENT if _SILENT in signs else "")


def described(state: str, reason: str) -> str:
    """Return in words how a host is, to follow its name.

    >>> described("drained", "disk is full")
    'takes no new jobs: disk is full'
    """
    word = state.rstrip(_SILENT)
    text = _WORDS.get(word, f"is {word}")
    if word != state:
        text = f"{text}, and does not respond" if word != UP else "does not respond"
    return f"{text}: {reason}" if reason else text


def fields_of(line: str) -> dict[str, str]:
    """Return what `scontrol -o` has printed, one line of `Key=Value`."""
    pairs = (word.partition("=") for word in line.split())
    return {key: value for key, sign, value in pairs if sign}
