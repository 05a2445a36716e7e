"""Steward's filters compared with those of libseccomp, where the host has it."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from daemon.confinement.bpf import host_architecture, numbers
from daemon.confinement.filters import DENIED, of_tasks
from tests.unit.confinement.interpreter import AUDIT, answer

try:
    LIBRARY = ctypes.CDLL("libseccomp.so.2", use_errno=True)
except OSError:
    pytest.skip("libseccomp is not installed", allow_module_level=True)

LIBRARY.seccomp_init.restype = ctypes.c_void_p
ALLOW, EPERM = 0x7FFF0000, 0x00050001
MASKED_EQUAL = 7  # SCMP_CMP_MASKED_EQ
UNKNOWN = -1


class Compare(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@contextmanager
def theirs(machine: str) -> Iterator[ctypes.c_void_p]:
    context = ctypes.c_void_p(LIBRARY.seccomp_init(ALLOW))
    token = ctypes.c_uint32(AUDIT[machine])
    if LIBRARY.seccomp_arch_exist(context, token) != 0:
        assert LIBRARY.seccomp_arch_add(context, token) == 0
        assert LIBRARY.seccomp_arch_remove(context, 0) == 0
    yield context
    LIBRARY.seccomp_release(context)


def exported(context: ctypes.c_void_p) -> bytes:
    descriptor = os.memfd_create("filter")
    try:
        assert LIBRARY.seccomp_export_bpf(context, descriptor) == 0
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


def test_numbers_match_libseccomp() -> None:
    for machine, token in AUDIT.items():
        ours = dict(numbers(machine))
        found = {
            name: LIBRARY.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token), name.encode())
            for name in ours
        }
        known = {name: number for name, number in found.items() if number != UNKNOWN}
        assert len(known) > 250
        assert known == {name: ours[name] for name in known}


@pytest.mark.parametrize("machine", sorted(AUDIT))
def test_calls_are_refused_as_by_a_filter_of_libseccomp(machine: str) -> None:
    # libseccomp expects the call numbers of the host's architecture, and translates them.
    here, native = numbers(machine), numbers(host_architecture())
    with theirs(machine) as context:
        for name in here.keys() & {*DENIED, "chroot"}:
            done = LIBRARY.seccomp_rule_add_exact_array(context, EPERM, native[name], 0, None)
            assert done == 0, name
        for bit in (1 << 17, *(1 << shift for shift in range(25, 31))):
            test = Compare(0, MASKED_EQUAL, bit, bit)
            arguments = (context, EPERM, native["clone"], 1, ctypes.byref(test))
            assert LIBRARY.seccomp_rule_add_exact_array(*arguments) == 0
        for command in (0x5412, 0x541C):
            test = Compare(1, MASKED_EQUAL, 0xFFFFFFFF, command)
            arguments = (context, EPERM, native["ioctl"], 1, ctypes.byref(test))
            assert LIBRARY.seccomp_rule_add_exact_array(*arguments) == 0
        other = exported(context)
    own = of_tasks(machine)
    differ = {"clone3", "openat2", "unshare", "chmod", "fchmod", "fchmodat", "creat", "open"}
    differ |= {"openat", "mknod", "mknodat"}  # the two filters differ by design
    values = [0, 1 << 17, 1 << 25, 1 << 28, 1 << 30, 0x3D0F00, 0x5412, 0x541C, 0x5412 | 1 << 40]
    asked = [
        (number, (value, value))
        for name, number in here.items()
        if name not in differ
        for value in values
    ]
    token = AUDIT[machine]
    ours = {item: answer(own, token, *item) for item in asked}
    assert ours == {item: answer(other, token, *item) for item in asked}
