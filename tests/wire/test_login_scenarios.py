"""Our answers against the other peer's captured ones, with a cloud that is not ours beside us.

The lists `pending.txt` and `decided.txt` name scenarios and steps here with `auth/` before them.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.wire.login import play, world
from tests.wire.scenarios import Failures, login_scenarios, names_in

AT_ONCE = 3
ALL = login_scenarios()
PENDING = names_in("pending.txt")
KNOWN = PENDING | names_in("decided.txt")


def run(name: str) -> Failures:
    scenario = ALL[name]
    with world(scenario.get("needs", [])) as (url, cloud_url, token):
        failures = play(scenario, url, cloud_url, token)
    return {f"{name}/{step}": text for step, text in failures.items()}


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Future[Failures]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run, name) for name in ALL}


@pytest.mark.parametrize("name", ALL)
def test_a_scenario_is_answered_as_captured(
    name: str, results: dict[str, Future[Failures]]
) -> None:
    failures = results[name].result(timeout=110)
    unexpected = {step: text for step, text in failures.items() if not {step, name} & KNOWN}
    assert unexpected == {}


@pytest.mark.parametrize("name", ALL)
def test_what_passes_is_not_listed_as_pending(
    name: str, results: dict[str, Future[Failures]]
) -> None:
    failures = results[name].result(timeout=110)
    listed = {step for step in KNOWN if step.startswith(f"{name}/")}
    assert listed - failures.keys() == set()
    assert name not in PENDING or failures
