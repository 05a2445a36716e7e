"""Malformed requests are answered, and the daemon keeps working; bench/fuzz.py sends many more."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.requests import Asked
from tests.fuzz.send import Attack
from tests.fuzz.vault_requests import any_requests
from tests.wire.scenarios import daemon

EXAMPLES = 400


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with daemon() as address:
        yield address


@pytest.fixture(scope="module")
def attack(target: str) -> Iterator[Attack]:
    attack = Attack(target)
    yield attack
    attack.close()


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(asked=any_requests())
def test_every_request_is_answered(attack: Attack, asked: Asked) -> None:
    assert attack.fault(asked) is None
