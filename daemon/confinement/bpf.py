"""Make filters of system calls: classic BPF, as the kernel and `bwrap --seccomp` take it.

A filter is a list of rules. Each becomes a block of instructions that answers, or falls through to
the next one with the number of the call in the accumulator: so no block knows another.

Three things hold for every filter. A process of another architecture is killed, because its numbers
mean other calls. A call that is newer than our table does not exist (`ENOSYS`), so no filter grows
holes with the kernel; that covers x32 as well, whose numbers have bit 30 set. Arguments are compared
in their lower 32 bits, as the kernel reads those that we look at.
"""

import errno
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import NamedTuple

from daemon.confinement import calls

ALLOW = 0x7FFF0000  # linux/seccomp.h
KILL = 0x80000000
_ERRNO = 0x00050000
_ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}  # linux/audit.h; column

# linux/bpf_common.h, linux/filter.h
_LOAD, _RETURN = 0x20, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # struct seccomp_data
_INSTRUCTION = struct.Struct("=HBBI")
SIZE = _INSTRUCTION.size  # bytes
MOST = 4096  # instructions that the kernel takes


class Is(Enum):
    """How an argument is looked at."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    ABOVE = "above"
    ANY_BIT = "any bit"


_JUMPS = {Is.EQUAL: 0x15, Is.UNEQUAL: 0x15, Is.ABOVE: 0x25, Is.ANY_BIT: 0x45}


class When(NamedTuple):
    """A question about an argument of a call, in its lower 32 bits."""

    argument: int
    how: Is
    value: int


class Rule(NamedTuple):
    """What a call answers when all tests hold."""

    call: str
    answer: int
    tests: tuple[When, ...] = ()


def refuse(error: int) -> int:
    """Return the answer that makes a call fail."""
    return _ERRNO | error


class Unknown(ValueError):
    """There is no table for this architecture, or the table has no such call."""


def this_machine() -> str:
    """Return the architecture of this machine, if there is a table for it. Raises `Unknown`."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        raise Unknown(f"no table of system calls for {machine}")
    return machine


@cache
def numbers(machine: str) -> Mapping[str, int]:
    """Return the numbers of all calls of an architecture, by name. Raises `Unknown`."""
    if machine not in _ARCHITECTURES:
        raise Unknown(f"no table of system calls for {machine}")
    column = _ARCHITECTURES[machine][1]
    rows = [line.split() for line in calls.TABLE.splitlines()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def assemble(machine: str, rules: Iterable[Rule]) -> bytes:
    """Return the filter. The first rule that holds answers; what no rule names is allowed.

    Raises `Unknown` for a call that no architecture has. A call that this one lacks needs no rule.
    """
    known = numbers(machine)
    program = [
        _load(_ARCHITECTURE),
        _jump(Is.EQUAL, _ARCHITECTURES[machine][0], yes=1),
        _return(KILL),
        _load(_NUMBER),
        _jump(Is.ABOVE, calls.NEWEST, no=1),
        _return(refuse(errno.ENOSYS)),
    ]
    for rule in rules:
        if rule.call in known:
            body = _body(rule)
            program += [_jump(Is.EQUAL, known[rule.call], no=len(body)), *body]
        elif not any(rule.call in numbers(other) for other in _ARCHITECTURES):
            raise Unknown(f"no architecture has the system call {rule.call}")
    program.append(_return(ALLOW))
    if len(program) > MOST:
        raise ValueError(f"{len(program)} instructions are too many: the kernel takes {MOST}")
    return b"".join(program)


def _body(rule: Rule) -> list[bytes]:
    """Return what follows when the number of the call is the rule's."""
    if not rule.tests:
        return [_return(rule.answer)]
    # Backwards: a test that does not hold leads to the last instruction, which loads the number again.
    body = [_return(rule.answer), _load(_NUMBER)]
    for test in reversed(rule.tests):
        away = len(body) - 1
        ways = {"yes": away} if test.how is Is.UNEQUAL else {"no": away}
        jump = _jump(test.how, test.value, **ways)
        body = [_load(_low(test.argument)), jump, *body]
    return body


def _low(argument: int) -> int:
    """Return where the lower half of an argument lies in `struct seccomp_data`."""
    return _ARGUMENTS + 8 * argument + (0 if sys.byteorder == "little" else 4)


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, offset)


def _return(answer: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, answer)


def _jump(how: Is, value: int, yes: int = 0, no: int = 0) -> bytes:
    return _INSTRUCTION.pack(_JUMPS[how], yes, no, value)
