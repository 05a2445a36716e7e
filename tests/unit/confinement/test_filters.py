"""The system call filter of tasks: an interpreter returns its result for each call."""

import errno

import pytest

from daemon.confinement.bpf import numbers, refuse
from daemon.confinement.filters import DENIED, of_tasks
from tests.unit.confinement.interpreter import ALLOW, AUDIT, answer, check

MACHINES = sorted(AUDIT)
EPERM, ENOSYS = refuse(errno.EPERM), refuse(errno.ENOSYS)
HIGH = 0xDEADBEEF << 32  # the upper half of an argument, which the kernel ignores
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
THREAD = 0x3D0F00  # flags of pthread_create
FORK = 0x1200011
O_CREAT, O_TMPFILE, O_EXCL = 0o100, 0o20200000, 0o200


def ask(machine: str, name: str, *arguments: int, **options: bool) -> int:
    program = of_tasks(machine, **options)
    return answer(program, AUDIT[machine], numbers(machine)[name], arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_passes_the_kernel_checks(machine: str) -> None:
    check(of_tasks(machine))
    check(of_tasks(machine, user_namespaces=True))


@pytest.mark.parametrize("machine", MACHINES)
def test_denied_calls_are_refused_and_all_others_allowed(machine: str) -> None:
    program = of_tasks(machine)
    answers = {
        name: answer(program, AUDIT[machine], number) for name, number in numbers(machine).items()
    }
    assert {name for name, got in answers.items() if got == EPERM} == {
        *(set(DENIED) & numbers(machine).keys()),
        "chroot",
    }
    assert {name for name, got in answers.items() if got == ENOSYS} == {"clone3", "openat2"}
    assert set(answers.values()) == {EPERM, ENOSYS, ALLOW}


@pytest.mark.parametrize(
    "name",
    [
        *("bpf", "perf_event_open", "userfaultfd", "ptrace", "process_vm_writev", "pidfd_getfd"),
        *("io_uring_setup", "keyctl", "add_key", "request_key", "open_by_handle_at"),
        *("mount", "umount2", "pivot_root", "move_mount", "fsopen", "setns", "mount_setattr"),
        *("init_module", "finit_module", "kexec_load", "reboot", "swapon", "acct"),
        *("settimeofday", "clock_settime", "adjtimex"),
    ],
)
@pytest.mark.parametrize("machine", MACHINES)
def test_known_sandbox_escapes_are_refused(machine: str, name: str) -> None:
    assert ask(machine, name) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("flag", NAMESPACES)
def test_a_new_namespace_is_refused(machine: str, flag: int) -> None:
    assert ask(machine, "clone", FORK | flag | HIGH) == EPERM
    assert ask(machine, "unshare", flag | HIGH) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_and_processes_can_be_created(machine: str) -> None:
    assert ask(machine, "clone", THREAD) == ALLOW
    assert ask(machine, "clone", FORK) == ALLOW
    assert ask(machine, "unshare", 0x200 | 0x400) == ALLOW  # CLONE_FS, CLONE_FILES
    assert ask(machine, "clone3") == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_nested_sandbox_can_be_allowed(machine: str) -> None:
    allowed = {"user_namespaces": True}
    assert ask(machine, "clone", FORK | NAMESPACES[4], **allowed) == ALLOW
    assert ask(machine, "unshare", NAMESPACES[4], **allowed) == ALLOW
    assert ask(machine, "clone3", **allowed) == ALLOW
    assert ask(machine, "chroot", **allowed) == ALLOW
    assert ask(machine, "mount", **allowed) == EPERM
    assert ask(machine, "bpf", **allowed) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("number", [0x5412, 0x541C])
def test_terminal_input_cannot_be_injected(machine: str, number: int) -> None:
    """The kernel reads 32 bits of the number: comparing 64 allowed a bypass (CVE-2019-10063)."""
    assert ask(machine, "ioctl", 0, number) == EPERM
    assert ask(machine, "ioctl", 0, number | HIGH) == EPERM
    assert ask(machine, "ioctl", 0, 0x5413) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6755])
def test_no_file_gets_a_set_id_bit(machine: str, mode: int) -> None:
    here = numbers(machine)
    before = {"chmod": (0,), "fchmod": (0,), "fchmodat": (0, 0), "mknodat": (0, 0)}
    before |= {"creat": (0,), "mknod": (0,), "openat": (0, 0, O_CREAT | O_EXCL), "open": (0, 0o101)}
    known = {name: values for name, values in before.items() if name in here}
    assert {ask(machine, name, *values, mode) for name, values in known.items()} == {EPERM}
    assert {ask(machine, name, *values, 0o1755) for name, values in known.items()} == {ALLOW}
    assert ask(machine, "openat", 0, 0, O_TMPFILE, mode | HIGH) == EPERM
    assert ask(machine, "openat", 0, 0, 0, mode) == ALLOW  # without O_CREAT, the mode is ignored
    assert ask(machine, "openat2") == ENOSYS
