"""Rate limits for failed logins, for every caller."""

import pytest

from daemon.acl.lockout import AT_ONCE, MOST, REGAINED, FailedLogins, LockoutPolicy
from storage.records.base import SECOND
from tests.samples import NOW

SPAN = 900 * SECOND
ELSEWHERE = "192.0.2.1"


def exhausted(address: str = "a") -> FailedLogins:
    failures = FailedLogins()
    for _ in range(AT_ONCE):
        assert not failures.are_too_many(address, NOW)
    return failures


def test_an_address_is_rejected_after_some_failures() -> None:
    assert exhausted().are_too_many("a", NOW)


def test_five_failures_per_second_are_tolerated() -> None:
    failures = exhausted()
    forgiven = [failures.are_too_many("a", NOW + SECOND) for _ in range(6)]
    assert forgiven == [*[False] * 5, True]


def test_other_addresses_are_not_rejected() -> None:
    assert not exhausted().are_too_many("b", NOW)


def test_one_failure_expires_after_a_while() -> None:
    failures = exhausted()
    assert failures.are_too_many("a", NOW + REGAINED - 1)
    assert not failures.are_too_many("a", NOW + REGAINED)
    assert failures.are_too_many("a", NOW + REGAINED)


def test_records_of_failed_logins_are_bounded() -> None:
    failures = FailedLogins()
    for number in range(MOST + 5):
        failures.are_too_many(str(number), NOW)
    assert len(failures._records) == MOST


# ---- the lock-out -------------------------------------------------------------------------------


def failed(times: int, address: str = ELSEWHERE, *, every: int = 0) -> FailedLogins:
    """Return the record of `times` failures, `every` nanoseconds apart, the last at `NOW`."""
    failures = FailedLogins(LockoutPolicy(threshold=3, span=SPAN))
    for number in range(times):
        failures.are_too_many(address, NOW - (times - 1 - number) * every)
    return failures


def test_frequent_failures_lock_out_for_a_while() -> None:
    failures = failed(3)
    assert failures.locked_for(ELSEWHERE, NOW) == SPAN
    assert failures.locked_for(ELSEWHERE, NOW + SPAN - 1) == 1
    assert failures.locked_for(ELSEWHERE, NOW + SPAN) == 0


def test_few_failures_do_not_lock_out() -> None:
    assert failed(2).locked_for(ELSEWHERE, NOW) == 0


def test_old_failures_are_not_counted() -> None:
    assert failed(3, every=SPAN // 3).locked_for(ELSEWHERE, NOW) == SPAN
    assert failed(3, every=SPAN // 2).locked_for(ELSEWHERE, NOW) == 0


def test_count_restarts_after_a_lockout() -> None:
    failures = failed(3)
    failures.are_too_many(ELSEWHERE, NOW + SPAN)
    assert failures.locked_for(ELSEWHERE, NOW + SPAN) == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", ""])
def test_local_clients_cannot_lock_each_other_out(address: str) -> None:
    assert failed(9, address).locked_for(address, NOW) == 0


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8:0:0:ffff::1", "2001:db8::2", True),
        ("2001:db8:0:1::1", "2001:db8::2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_failures_are_counted_per_address_or_network(left: str, right: str, same: bool) -> None:
    assert bool(failed(3, left).locked_for(right, NOW)) is same


def test_lockout_at_one_role_does_not_count_at_another() -> None:
    failures = failed(3)
    assert failures.locked_for(ELSEWHERE, NOW) == SPAN
    assert failures.locked_for(ELSEWHERE, NOW, "role") == 0
    assert not failures.are_too_many(ELSEWHERE, NOW, "role")


def test_failure_during_a_lockout_does_not_extend_the_lockout() -> None:
    failures = failed(3)
    assert failures.are_too_many(ELSEWHERE, NOW + SPAN - 1)
    assert failures.locked_for(ELSEWHERE, NOW + SPAN) == 0


def test_without_a_threshold_no_client_is_locked_out() -> None:
    failures = FailedLogins()
    for _ in range(9):
        failures.are_too_many(ELSEWHERE, NOW)
    assert failures.locked_for(ELSEWHERE, NOW) == 0
