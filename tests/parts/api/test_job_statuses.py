"""The summaries of jobs, and their query parameters."""

from functools import partial

import pytest

from daemon.api.cluster import statuses
from daemon.api.routes import ROUTES
from storage.errors import Malformed
from storage.store import Store
from tests.parts.api import requests

(NEEDS,) = {route.needs for route in ROUTES if route.path == "/v1/jobs/statuses"}


def ask(store: Store, query: str, body: object = None) -> object:
    asked = requests.request(store, NEEDS, requests.caller(), query=query, body=body)
    return store.read(partial(statuses.index, asked))


@pytest.mark.parametrize("query", ["strip=true", "strip=1&states=false", "strip=t&states="])
@pytest.mark.parametrize("body", [None, {"jobs": [{"id": "web"}]}])
async def test_run_results_without_the_state_are_refused(
    store: Store, query: str, body: object
) -> None:
    with pytest.raises(Malformed, match="strip = true needs states = true"):
        ask(store, query, body)


@pytest.mark.parametrize("query", ["", "strip=false", "states=true", "strip=true&states=true"])
async def test_run_results_are_returned_with_the_state(store: Store, query: str) -> None:
    assert ask(store, query) is not None
