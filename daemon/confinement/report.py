"""What holds for a process, read from the kernel's own account of it (`/proc/PID/status`)."""

from collections.abc import Mapping
from typing import NamedTuple

_MODES = {"0": "no filter", "1": "strict", "2": "filter"}
# linux/capability.h, by number
_CAPABILITIES = (
    *("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid"),
    *("setpcap", "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw"),
    *("ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct"),
    *("sys_admin", "sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod"),
    *("lease", "audit_write", "audit_control", "setfcap", "mac_override", "mac_admin", "syslog"),
    *("wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore"),
)


class Confinement(NamedTuple):
    """What a process may still do, as far as the kernel tells."""

    user: int  # the effective one
    capabilities: tuple[str, ...]  # that it has, or could gain by executing a program
    no_new_privileges: bool
    filter: str
    filters: int
    files_restricted: bool
    dumpable: bool


def of(status: str, *, files_restricted: bool, dumpable: bool) -> Confinement:
    """Return what holds, from the text of `/proc/PID/status` and what that does not tell."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return Confinement(
        user=int(fields["Uid"].split()[1]),
        capabilities=tuple(_capabilities(fields)),
        no_new_privileges=fields["NoNewPrivs"].strip() == "1",
        filter=_MODES.get(fields.get("Seccomp", "").strip(), "unknown"),
        filters=int(fields.get("Seccomp_filters", "0")),
        files_restricted=files_restricted,
        dumpable=dumpable,
    )


def _capabilities(fields: Mapping[str, str]) -> list[str]:
    """Return the names of all that are in any set."""
    held = 0
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        held |= int(fields[name], 16)
    names = dict(enumerate(_CAPABILITIES))
    numbers = [number for number in range(held.bit_length()) if held >> number & 1]
    return [names.get(number, str(number)) for number in numbers]
