"""Shared fixtures: a cluster of one node."""

import pytest

from storage.store import Store
from tests.parts.evals.cluster import Cluster


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.join()
    return made
