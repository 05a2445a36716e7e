"""The filters of system calls: what a task may not ask of the kernel, and what the daemon may not.

A filter takes away what no ordinary program needs and what has been the way out of many a sandbox:
parts of the kernel that are large, young or meant for its administrator. Everything else is allowed.
"""

import errno

from daemon.confinement.bpf import Is, Rule, When, assemble, refuse

_EPERM = refuse(errno.EPERM)
_ENOSYS = refuse(errno.ENOSYS)

# linux/sched.h: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME is one of
# the bits of a signal for `clone`, and a namespace for `unshare`.
_NAMESPACES = 0x7E020000
_NEW_TIME = 0x80
_SET_ID = 0o6000  # S_ISUID, S_ISGID
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000  # the bit of its own that O_TMPFILE has
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # asm-generic/ioctls.h: put input into a terminal

_PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 0x2, 0x4, 0o100000
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6

_KERNEL = (
    *("bpf", "perf_event_open", "userfaultfd", "lookup_dcookie", "syslog", "kcmp"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("add_key", "request_key", "keyctl"),
    *("fanotify_init", "open_by_handle_at"),
)
_USERS = (
    *("setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid"),
    *("setfsgid", "setgroups"),
)
_MOUNTS = (
    *("mount", "umount2", "pivot_root", "open_tree", "move_mount", "mount_setattr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "setns"),
)
_ADMINISTRATION = (
    *("init_module", "finit_module", "delete_module", "create_module", "query_module"),
    *("get_kernel_syms", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff"),
    *("clock_settime", "settimeofday", "adjtimex", "clock_adjtime", "acct", "quotactl"),
    *("quotactl_fd", "iopl", "ioperm", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl"),
    *("vhangup", "sethostname", "setdomainname", "vserver"),
)
DENIED = (*_KERNEL, *_MOUNTS, *_ADMINISTRATION)


def of_tasks(machine: str, *, user_namespaces: bool = False) -> bytes:
    """Return the filter of a task. Raises `bpf.Unknown`.

    With `user_namespaces` it may make namespaces, as browsers do for a sandbox of their own; to
    mount anything in them it may not.
    """
    rules = [Rule(call, _EPERM) for call in DENIED]
    rules += _terminals()
    rules += _set_id()
    if not user_namespaces:
        rules += [Rule("chroot", _EPERM), *_namespaces()]
    return assemble(machine, rules)


def of_daemon(machine: str, *, programs: bool = False) -> bytes:
    """Return the filter of a daemon without rights. Raises `bpf.Unknown`.

    Besides what tasks may not, it cannot change its user, map memory that it can both write and
    execute, or open sockets other than those of the machine and of IP. With `programs` it may
    execute others: commands of notifications, git, the programs of a cluster.
    """
    rules = [Rule(call, _EPERM) for call in (*DENIED, "chroot", *_USERS)]
    rules += [*_terminals(), *_set_id(), *_namespaces(), *_memory(), *_sockets()]
    if not programs:
        rules += [Rule(call, _EPERM) for call in ("execve", "execveat")]
    return assemble(machine, rules)


def _memory() -> list[Rule]:
    """Return what refuses memory that is written and executed."""
    both = (When(2, Is.ANY_BIT, _PROT_WRITE), When(2, Is.ANY_BIT, _PROT_EXEC))
    return [
        Rule("mmap", _EPERM, both),
        *(Rule(one, _EPERM, (both[1],)) for one in ("mprotect", "pkey_mprotect")),
        Rule("shmat", _EPERM, (When(2, Is.ANY_BIT, _SHM_EXEC),)),
    ]


def _sockets() -> list[Rule]:
    """Return what refuses sockets but those of AF_UNIX, AF_INET and AF_INET6."""
    others = tuple(When(0, Is.UNEQUAL, family) for family in _FAMILIES)
    refused = refuse(errno.EAFNOSUPPORT)
    return [Rule(call, refused, others) for call in ("socket", "socketpair")]


def _namespaces() -> list[Rule]:
    """Return what refuses new namespaces.

    The flags of `clone3` lie in memory, where no filter can look: it does not exist, and the C
    library turns to `clone`.
    """
    return [
        Rule("clone", _EPERM, (When(0, Is.ANY_BIT, _NAMESPACES),)),
        Rule("clone3", _ENOSYS),
        Rule("unshare", _EPERM, (When(0, Is.ANY_BIT, _NAMESPACES | _NEW_TIME),)),
    ]


def _terminals() -> list[Rule]:
    """Return what keeps a task from typing into the terminal of whoever looks at it."""
    return [
        Rule("ioctl", _EPERM, (When(1, Is.EQUAL, number),)) for number in (_TIOCSTI, _TIOCLINUX)
    ]


def _set_id() -> list[Rule]:
    """Return what refuses files that run as their owner or group, however they come about.

    `openat2` takes its mode from memory: it does not exist, and programs turn to `openat`.
    """
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}
    rules = [
        Rule(call, _EPERM, (When(argument, Is.ANY_BIT, _SET_ID),))
        for call, argument in modes.items()
    ]
    # Where no file is made the mode is whatever lay in the register.
    for call, flags in (("open", 1), ("openat", 2)):
        makes = When(flags, Is.ANY_BIT, _O_CREAT | _O_TMPFILE)
        rules.append(Rule(call, _EPERM, (makes, When(flags + 1, Is.ANY_BIT, _SET_ID))))
    return [*rules, Rule("openat2", _ENOSYS)]
