"""Build system call filters: classic BPF programs for the kernel and `bwrap --seccomp`.

A filter is a list of rules. Each rule becomes a block of instructions. A block returns a result, or
it leaves the call number in the accumulator and continues with the next block. Blocks are therefore
independent.

Three properties hold for every filter. A process of another architecture is killed, because its
call numbers differ. A call that is newer than the table fails with `ENOSYS`, so that new kernels
open no gaps. This includes x32 calls, whose numbers have bit 30 set. Only the lower 32 bits of
arguments are compared, because the kernel reads only these bits of the examined arguments.
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

ALLOW = 0x7FFF0000  # from linux/seccomp.h
KILL = 0x80000000
_ERRNO = 0x00050000
# linux/audit.h; column of the table
_ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

# linux/bpf_common.h, linux/filter.h
_LOAD, _RETURN = 0x20, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # struct seccomp_data
_INSTRUCTION = struct.Struct("=HBBI")
SIZE = _INSTRUCTION.size  # bytes
MOST = 4096  # instructions that the kernel takes


class ArgumentComparison(Enum):
    """The ways in which a filter compares an argument of a system call."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    ABOVE = "above"
    ANY_BIT = "any bit"


_JUMPS = {
    ArgumentComparison.EQUAL: 0x15,
    ArgumentComparison.UNEQUAL: 0x15,
    ArgumentComparison.ABOVE: 0x25,
    ArgumentComparison.ANY_BIT: 0x45,
}


class ArgumentTest(NamedTuple):
    """A test of an argument of a call, in its lower 32 bits."""

    argument: int
    how: ArgumentComparison
    value: int


class Rule(NamedTuple):
    """The result of a call if all tests match."""

    call: str
    answer: int
    tests: tuple[ArgumentTest, ...] = ()


def refuse(error: int) -> int:
    """Return the result that makes a call fail with an errno."""
    return _ERRNO | error


class Unknown(ValueError):
    """There is no table for this architecture, or the table lacks the system call."""


def host_architecture() -> str:
    """Return the architecture of this host if there is a table for it. Raises `Unknown`."""
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
    """Return the filter of these rules: the first matching rule decides, other calls are permitted.

    Raises `Unknown` for a call that no architecture has. A call that only this architecture lacks
    needs no rule.
    """
    call_numbers = numbers(machine)
    program = [
        _load(_ARCHITECTURE),
        _jump(ArgumentComparison.EQUAL, _ARCHITECTURES[machine][0], if_true=1),
        _return(KILL),
        _load(_NUMBER),
        _jump(ArgumentComparison.ABOVE, calls.NEWEST, if_false=1),
        _return(refuse(errno.ENOSYS)),
    ]
    for rule in rules:
        if rule.call in call_numbers:
            body = _body(rule)
            program += [
                _jump(ArgumentComparison.EQUAL, call_numbers[rule.call], if_false=len(body)),
                *body,
            ]
        elif not any(rule.call in numbers(architecture) for architecture in _ARCHITECTURES):
            raise Unknown(f"no architecture has the system call {rule.call}")
    program.append(_return(ALLOW))
    if len(program) > MOST:
        raise ValueError(f"the filter has {len(program)} instructions; the kernel accepts {MOST}")
    return b"".join(program)


def _body(rule: Rule) -> list[bytes]:
    """Return the instructions of a rule after its call number has matched."""
    if not rule.tests:
        return [_return(rule.answer)]
    # Built backwards: a failed test jumps to the last instruction, which loads the call number
    # again.
    body = [_return(rule.answer), _load(_NUMBER)]
    for test in reversed(rule.tests):
        away = len(body) - 1
        targets = (
            {"if_true": away} if test.how is ArgumentComparison.UNEQUAL else {"if_false": away}
        )
        jump = _jump(test.how, test.value, **targets)
        body = [_load(_low(test.argument)), jump, *body]
    return body


def _low(argument: int) -> int:
    """Return the offset of an argument's lower half in `struct seccomp_data`."""
    return _ARGUMENTS + 8 * argument + (0 if sys.byteorder == "little" else 4)


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, offset)


def _return(answer: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, answer)


def _jump(how: ArgumentComparison, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return _INSTRUCTION.pack(_JUMPS[how], if_true, if_false, value)
