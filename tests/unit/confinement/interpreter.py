"""Run a filter of system calls as the kernel does: classic BPF over `struct seccomp_data`."""

import struct
from collections.abc import Sequence

ALLOW, KILL = 0x7FFF0000, 0x80000000
X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
AUDIT = {"x86_64": X86_64, "aarch64": AARCH64}

_WORD = 0xFFFFFFFF


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """Return each instruction as (code, offset if true, offset if false, value)."""
    return list(struct.iter_unpack("=HBBI", program))


def check(program: bytes) -> None:
    """Raise `AssertionError` unless the kernel would accept the filter."""
    lines = instructions(program)
    assert 0 < len(lines) <= 4096
    for at, (code, yes, no, value) in enumerate(lines):
        if code == 0x20:
            assert value % 4 == 0
            assert value < 64
        elif code in (0x15, 0x25, 0x35, 0x45):
            assert at + 1 + max(yes, no) < len(lines)
        else:
            assert code in (0x05, 0x06, 0x54)
    assert lines[-1][0] == 0x06


def answer(program: bytes, architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
    """Return the result of a filter for a system call."""
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number & _WORD, architecture, 0, *words)
    lines, at, accumulator = instructions(program), 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, value)[0]
            case 0x54:
                accumulator &= value
            case 0x06:
                return value
            case 0x05:
                at += value
            case 0x15:
                at += yes if accumulator == value else no
            case 0x25:
                at += yes if accumulator > value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x45:
                at += yes if accumulator & value else no
            case _:
                raise AssertionError(f"instruction {code:#x}")
