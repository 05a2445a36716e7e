"""Block connections of tasks to the cloud metadata service and the daemon (`task_egress`)."""

import errno
import logging
import os
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, ip_address, ip_network
from pathlib import Path

from daemon.config.settings import GUARDED, Settings
from daemon.confinement import bpf, egress
from daemon.confinement.egress import DeniedAddresses
from daemon.net import egress_policy
from daemon.runner import host_networks
from daemon.runner.drivers import cgroup_v2
from daemon.runner.setup.runtime import unguarded

_NO_GROUPS = "the daemon cannot create control groups of version 2 for tasks"
_NOT_ROOT = "only root can filter the connections of tasks"
_REFUSED = "the kernel does not permit this daemon to attach BPF programs, as in many containers"

_log = logging.getLogger("steward.runner")


class TaskEgressPolicy:
    """The egress policy of the tasks on this host.

    `wanted` is the configured policy. `trouble` is the reason why the policy is not enforced; empty
    if it is enforced.
    """

    def __init__(self, groups: Iterable[Path], *, is_wanted: bool = False) -> None:
        self.wanted, self.trouble = is_wanted, ""
        self._groups = list(groups)
        self._guarded: dict[Path, int] = {}  # inode of each cgroup when its programs were attached

    @property
    def attributes(self) -> dict[str, str]:
        """Return the node attributes of the policy."""
        if not self.wanted:
            return {}
        if self.trouble:
            return {"task_egress.unenforced": self.trouble}
        return {"task_egress.enforced": "cgroup bpf"}

    def check(self) -> tuple[bool, str]:
        """Return whether the kernel filters every cgroup of tasks now, with an explanation."""
        if not self.wanted:
            return unguarded()
        if self.trouble:
            return False, self.trouble
        if all(map(self._has_programs, self._groups)):
            return (
                True,
                "BPF programs of the tasks' cgroups; containers and cluster pools are not covered",
            )
        return False, "a cgroup of tasks has no BPF program: restart the daemon"

    def _has_programs(self, group: Path) -> bool:
        try:
            return egress.is_attached(str(group))
        # Only root can query the programs, and only root could have detached them.
        except PermissionError:
            return group.exists() and group.stat().st_ino == self._guarded.get(group)

    def set_up(self, denied: Iterable[DeniedAddresses]) -> None:
        """Attach the filters to the cgroups, or detach them; record an error in `trouble`."""
        denied_networks = list(denied)
        for group in self._groups:
            try:
                if self.wanted:
                    group.mkdir(exist_ok=True)
                    # Before attaching, so that a later daemon knows that there is something to
                    # detach.
                    os.setxattr(group, cgroup_v2.GUARDED, b"1")
                    egress.attach(str(group), denied_networks)
                    self._guarded[group] = group.stat().st_ino
                else:
                    egress.detach(str(group))
                    os.removexattr(group, cgroup_v2.GUARDED)
            except (OSError, bpf.Unknown) as error:
                self.trouble = _reason(error)
        if self.wanted and not self._groups:
            self.trouble = _NO_GROUPS
        if self.wanted and self.trouble:
            _log.warning('task_egress = "%s" is not enforced: %s', GUARDED, self.trouble)


def guarded(config: Settings, groups: Iterable[Path]) -> TaskEgressPolicy:
    """Set up the configured policy on the cgroups that contain all tasks of this host."""
    task_egress_policy = TaskEgressPolicy(groups, is_wanted=config.task_egress == GUARDED)
    task_egress_policy.set_up(denied(config) if task_egress_policy.wanted else ())
    return task_egress_policy


def denied(config: Settings) -> Iterator[DeniedAddresses]:
    """Yield the addresses that tasks must not reach."""
    yield from map(DeniedAddresses, egress.LINK_LOCAL)
    bridge = IPv4Network(config.bridge_network_subnet)
    for port in sorted(egress_policy.own_ports(config)):
        yield DeniedAddresses(ip_network(bridge[1]), port)
        for network in egress.LOOPBACK:
            yield DeniedAddresses(network, port)
        for address in _own_addresses(config):
            yield DeniedAddresses(ip_network(address), port)


def _own_addresses(config: Settings) -> list[str]:
    """Return the non-loopback addresses on which the daemon listens."""
    wrapper = config.wrapper_host if config.pools else ""
    hosts = {config.bind, config.issuer_bind, wrapper} - {"", "localhost"}
    bound = {ip_address(host) for host in hosts if _is_address(host)}
    if any(address.is_unspecified for address in bound) or len(bound) < len(hosts):
        return sorted({address.ip for address in host_networks.addresses()})
    return sorted(str(address) for address in bound if not address.is_loopback)


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
