"""The generator of filters: its programs implement the rules, on either architecture."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.confinement import calls
from daemon.confinement.bpf import (
    ArgumentComparison,
    ArgumentTest,
    Rule,
    Unknown,
    assemble,
    numbers,
    refuse,
)
from tests.unit.confinement.interpreter import ALLOW, AUDIT, I386, KILL, answer, check

NAMES = sorted(numbers("x86_64").keys() & numbers("aarch64").keys())[:12]
WORDS = st.one_of(st.sampled_from([0, 1, 2, 0o6000, 0x5412]), st.integers(0, 2**32 - 1))
LONG = st.builds(lambda low, high: low | high << 32, WORDS, st.sampled_from([0, 1, 2**32 - 1]))
TESTS = st.builds(ArgumentTest, st.integers(0, 5), st.sampled_from(ArgumentComparison), WORDS)
RULES = st.builds(
    Rule,
    st.sampled_from(NAMES),
    st.sampled_from([refuse(errno.EPERM), refuse(errno.ENOSYS), KILL]),
    st.lists(TESTS, max_size=4).map(tuple),
)


def holds(test: ArgumentTest, arguments: list[int]) -> bool:
    low = arguments[test.argument] & 0xFFFFFFFF
    return {
        ArgumentComparison.EQUAL: low == test.value,
        ArgumentComparison.UNEQUAL: low != test.value,
        ArgumentComparison.ABOVE: low > test.value,
        ArgumentComparison.ANY_BIT: bool(low & test.value),
    }[test.how]


@given(
    machine=st.sampled_from(sorted(AUDIT)),
    rules=st.lists(RULES, max_size=20),
    name=st.sampled_from(NAMES),
    arguments=st.lists(LONG, min_size=6, max_size=6),
)
def test_first_matching_rule_decides(
    machine: str, rules: list[Rule], name: str, arguments: list[int]
) -> None:
    program = assemble(machine, rules)
    check(program)
    fitting = [
        rule.answer
        for rule in rules
        if rule.call == name and all(holds(test, arguments) for test in rule.tests)
    ]
    got = answer(program, AUDIT[machine], numbers(machine)[name], arguments)
    assert got == (fitting[0] if fitting else ALLOW)


@pytest.mark.parametrize("machine", sorted(AUDIT))
def test_call_from_another_architecture_kills_the_process(machine: str) -> None:
    program = assemble(machine, [])
    others = {I386, *AUDIT.values()} - {AUDIT[machine]}
    assert {answer(program, other, 1) for other in others} == {KILL}


@pytest.mark.parametrize("number", [calls.NEWEST + 1, 0x40000000, 0x40000001, 2**32 - 1])
def test_newer_calls_and_x32_calls_return_enosys(number: int) -> None:
    assert answer(assemble("x86_64", []), AUDIT["x86_64"], number) == refuse(errno.ENOSYS)


def test_newest_known_call_is_allowed() -> None:
    assert answer(assemble("x86_64", []), AUDIT["x86_64"], calls.NEWEST) == ALLOW


def test_call_missing_on_this_architecture_needs_no_rule() -> None:
    assert assemble("aarch64", [Rule("open", KILL)]) == assemble("aarch64", [])


def test_unknown_system_call_is_an_error() -> None:
    with pytest.raises(Unknown, match="no architecture has the system call oepn"):
        assemble("aarch64", [Rule("oepn", KILL)])


def test_an_architecture_without_a_table_is_an_error() -> None:
    with pytest.raises(Unknown, match="no table of system calls for riscv64"):
        assemble("riscv64", [])
