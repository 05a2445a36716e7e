"""Steward's responses compared with Vault's captured ones, with an external fake cloud.

The lists `pending.txt` and `decided.txt` name scenarios and steps of this module with the prefix
`auth/`.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.wire.login import play, world
from tests.wire.scenarios import DOORS, PATIENCE, Failures, login_scenarios, names_in, wanted

AT_ONCE = 3
ALL = login_scenarios()
PENDING = names_in("pending.txt")
KNOWN = PENDING | names_in("decided.txt")

Results = Mapping[tuple[str, str], Future[Failures]]  # by (scenario, door)


def run(name: str, door: str) -> Failures:
    scenario = ALL[name]
    with world(scenario.get("needs", []), door) as (url, cloud_url, token):
        failures = play(scenario, url, cloud_url, token)
    return {f"{name}/{step}": text for step, text in failures.items()}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {(name, door): pool.submit(run, name, door) for name, door in wanted(request)}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("door", DOORS)
def test_scenario_is_answered_as_captured(name: str, door: str, results: Results) -> None:
    failures = results[name, door].result(timeout=PATIENCE)
    unexpected = {step: text for step, text in failures.items() if not {step, name} & KNOWN}
    assert unexpected == {}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("door", DOORS)
def test_passing_scenario_is_not_listed_as_pending(name: str, door: str, results: Results) -> None:
    failures = results[name, door].result(timeout=PATIENCE)
    listed = {step for step in KNOWN if step.startswith(f"{name}/")}
    assert listed - failures.keys() == set()
    assert name not in PENDING or failures
