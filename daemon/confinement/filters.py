"""The system call filters of tasks and of the daemon.

A filter blocks calls that no ordinary program needs and that sandbox escapes often use. Such calls
enter large, new or administrative parts of the kernel. All other calls are permitted.
"""

import errno

from daemon.confinement.bpf import ArgumentComparison, ArgumentTest, Rule, assemble, refuse

_EPERM = refuse(errno.EPERM)
_ENOSYS = refuse(errno.ENOSYS)

# linux/sched.h: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME is one of
# the bits of a signal for `clone`, and a namespace for `unshare`.
_NAMESPACES = 0x7E020000
_NEW_TIME = 0x80
_SET_ID = 0o6000  # S_ISUID, S_ISGID
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000  # the bit that only O_TMPFILE has
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # asm-generic/ioctls.h: insert input into a terminal

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

    With `user_namespaces` it permits new namespaces, as browsers need them for their sandbox, but
    no mounts in these namespaces.
    """
    rules = [Rule(call, _EPERM) for call in DENIED]
    rules += _terminals()
    rules += _set_id()
    if not user_namespaces:
        rules += [Rule("chroot", _EPERM), *_namespaces()]
    return assemble(machine, rules)


def of_daemon(machine: str, *, programs: bool = False) -> bytes:
    """Return the filter of an unprivileged daemon. Raises `bpf.Unknown`.

    In addition to the restrictions of tasks, the daemon cannot change its user, map memory that is
    writable and executable, or open sockets other than Unix and IP. With `programs`, it may execute
    programs. It runs git if the host has no sandboxes, and notification commands if no launcher
    runs as root.
    """
    rules = [Rule(call, _EPERM) for call in (*DENIED, "chroot", *_USERS)]
    rules += [*_terminals(), *_set_id(), *_namespaces(), *_memory(), *_sockets()]
    if not programs:
        rules += [Rule(call, _EPERM) for call in ("execve", "execveat")]
    return assemble(machine, rules)


def _memory() -> list[Rule]:
    """Return rules against memory that is writable and executable."""
    both = (
        ArgumentTest(2, ArgumentComparison.ANY_BIT, _PROT_WRITE),
        ArgumentTest(2, ArgumentComparison.ANY_BIT, _PROT_EXEC),
    )
    return [
        Rule("mmap", _EPERM, both),
        *(Rule(call, _EPERM, (both[1],)) for call in ("mprotect", "pkey_mprotect")),
        Rule("shmat", _EPERM, (ArgumentTest(2, ArgumentComparison.ANY_BIT, _SHM_EXEC),)),
    ]


def _sockets() -> list[Rule]:
    """Return rules against sockets other than AF_UNIX, AF_INET and AF_INET6."""
    other_families = tuple(
        ArgumentTest(0, ArgumentComparison.UNEQUAL, family) for family in _FAMILIES
    )
    refused = refuse(errno.EAFNOSUPPORT)
    return [Rule(call, refused, other_families) for call in ("socket", "socketpair")]


def _namespaces() -> list[Rule]:
    """Return rules against new namespaces.

    The flags of `clone3` are in memory, which filters cannot read. The call therefore fails with
    `ENOSYS`, and the C library falls back to `clone`.
    """
    return [
        Rule("clone", _EPERM, (ArgumentTest(0, ArgumentComparison.ANY_BIT, _NAMESPACES),)),
        Rule("clone3", _ENOSYS),
        Rule(
            "unshare",
            _EPERM,
            (ArgumentTest(0, ArgumentComparison.ANY_BIT, _NAMESPACES | _NEW_TIME),),
        ),
    ]


def _terminals() -> list[Rule]:
    """Return rules against inserting input into a terminal."""
    return [
        Rule("ioctl", _EPERM, (ArgumentTest(1, ArgumentComparison.EQUAL, number),))
        for number in (_TIOCSTI, _TIOCLINUX)
    ]


def _set_id() -> list[Rule]:
    """Return rules against set-user-ID and set-group-ID files.

    `openat2` reads its mode from memory. The call therefore fails with `ENOSYS`, and programs fall
    back to `openat`.
    """
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}
    rules = [
        Rule(call, _EPERM, (ArgumentTest(argument, ArgumentComparison.ANY_BIT, _SET_ID),))
        for call, argument in modes.items()
    ]
    # Without creation of a file, the mode argument is undefined.
    for call, flags in (("open", 1), ("openat", 2)):
        makes = ArgumentTest(flags, ArgumentComparison.ANY_BIT, _O_CREAT | _O_TMPFILE)
        rules.append(
            Rule(
                call, _EPERM, (makes, ArgumentTest(flags + 1, ArgumentComparison.ANY_BIT, _SET_ID))
            )
        )
    return [*rules, Rule("openat2", _ENOSYS)]
