"""Keep tasks from the machine's metadata service and from the daemon, as `task_egress` asks for it."""

import errno
import logging
import os
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

from daemon import reach
from daemon.config import GUARDED, Config
from daemon.confinement import bpf, egress
from daemon.confinement.egress import Denied
from daemon.runner import networks
from daemon.runner.drivers import cgroup
from daemon.runner.host import unguarded

_NO_GROUPS = "the daemon may make no control groups of version 2 for tasks"
_NOT_ROOT = "only root may guard the connections of tasks"
_REFUSED = "the kernel lets this daemon attach no BPF programs, as in many containers"

_log = logging.getLogger("steward.runner")


class Guard:
    """What keeps the tasks of this machine from some addresses.

    `wanted` is what the settings ask for. `trouble` says why it does not hold; nothing: it does.
    """

    def __init__(self, groups: Iterable[Path], *, wanted: bool = False) -> None:
        self.wanted, self.trouble = wanted, ""
        self._groups = list(groups)

    @property
    def attributes(self) -> dict[str, str]:
        """Return what a node says of it."""
        if not self.wanted:
            return {}
        if self.trouble:
            return {"task_egress.unenforced": self.trouble}
        return {"task_egress.enforced": "cgroup bpf"}

    def check(self) -> tuple[bool, str]:
        """Return whether the kernel guards every group of tasks now, and by what or why not."""
        if not self.wanted:
            return unguarded()
        if self.trouble:
            return False, self.trouble
        if all(map(egress.is_attached, map(str, self._groups))):
            return True, "BPF programs at the control groups of tasks; not in containers and pools"
        return False, "the kernel has no program for a group of tasks: restart the daemon"

    def set_up(self, denied: Iterable[Denied]) -> None:
        """Have the kernel guard the groups, or let them be; note what went wrong."""
        every = list(denied)
        for group in self._groups:
            try:
                if self.wanted:
                    group.mkdir(exist_ok=True)
                    os.setxattr(group, cgroup.GUARDED, b"1")  # first: what is there can be undone
                    egress.attach(str(group), every)
                else:
                    egress.detach(str(group))
                    os.removexattr(group, cgroup.GUARDED)
            except (OSError, bpf.Unknown) as error:
                self.trouble = _reason(error)
        if self.wanted and not self._groups:
            self.trouble = _NO_GROUPS
        if self.wanted and self.trouble:
            _log.warning('task_egress = "%s" does not hold: %s', GUARDED, self.trouble)


def guarded(config: Config, groups: Iterable[Path]) -> Guard:
    """Set up what the settings ask for, for groups that hold all tasks of this machine."""
    made = Guard(groups, wanted=config.task_egress == GUARDED)
    made.set_up(denied(config) if made.wanted else ())
    return made


def denied(config: Config) -> Iterator[Denied]:
    """Yield the addresses that tasks are kept from."""
    yield from map(Denied, egress.LINK_LOCAL)
    for port in sorted(reach.own_ports(config)):
        for network in egress.LOOPBACK:
            yield Denied(network, port)
        for address in _own_addresses(config):
            yield Denied(ip_network(address), port)


def _own_addresses(config: Config) -> list[str]:
    """Return the addresses at which the daemon listens besides loopback."""
    hosts = {config.bind, config.issuer_bind} - {"", "localhost"}
    bound = {ip_address(one) for one in hosts if _is_address(one)}
    if any(one.is_unspecified for one in bound) or len(bound) < len(hosts):
        return sorted({one.ip for one in networks.addresses()})
    return sorted(str(one) for one in bound if not one.is_loopback)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return _REFUSED if os.geteuid() == 0 else _NOT_ROOT
    if isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.ENOSYS):
        return "this kernel has no BPF programs for control groups"
    return str(error)
