"""The real cluster, once for each module; left out where its packages are missing."""

from collections.abc import Iterator

import pytest

from tests.service.slurm.cluster import Cluster, missing, open_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a cluster for the tests of a module, which leave it as they found it."""
    if lacking := missing():
        pytest.skip(f"a cluster needs {', '.join(lacking)}")
    with open_cluster() as running:
        yield running
