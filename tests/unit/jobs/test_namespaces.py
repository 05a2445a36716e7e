"""Permissions of a namespace for its jobs, and the hash by which clients detect its changes."""

import pytest

from daemon.jobs.namespaces import forbidden_drivers, namespace_hash
from storage.records.namespace import Namespace, NamespaceCapabilities
from storage.records.task import Network
from tests.samples import group, job, task


def limited(**limits: list[str]) -> Namespace:
    return Namespace(name="ops", capabilities=NamespaceCapabilities(**limits))


@pytest.mark.parametrize(
    "namespace",
    [
        Namespace(name="ops"),
        limited(),
        limited(enabled_task_drivers=["raw_exec", "exec"]),
        limited(disabled_task_drivers=["docker"]),
    ],
)
def test_drivers_without_a_limit_are_allowed(namespace: Namespace) -> None:
    assert forbidden_drivers(job(), namespace) == []


@pytest.mark.parametrize(
    "namespace",
    [
        limited(enabled_task_drivers=["exec"]),
        limited(disabled_task_drivers=["raw_exec"]),
        limited(enabled_task_drivers=["raw_exec"], disabled_task_drivers=["raw_exec"]),
    ],
)
def test_forbidden_driver_is_named(namespace: Namespace) -> None:
    expected = 'used task driver "raw_exec" is not allowed in namespace "ops"'
    assert forbidden_drivers(job(), namespace) == [expected]


def test_all_forbidden_drivers_are_named() -> None:
    both = job("a", group("g", task("one"), task("two", driver="mock_driver")))
    assert forbidden_drivers(both, limited(enabled_task_drivers=["exec"])) == [
        'used task drivers ["raw_exec" "mock_driver"] are not allowed in namespace "ops"'
    ]


def test_forbidden_network_mode_is_named() -> None:
    plain = job("a", group("g", networks=[Network()]))
    assert forbidden_drivers(plain, limited(enabled_network_modes=["bridge"])) == [
        'used group network mode "host" is not allowed in namespace "ops"'
    ]


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        (Namespace(name="g-ns2"), "6deKFOaYG50JgK/gmGJ1BwnGQdDxLHvHi/B3c4OhJl4="),
        (
            Namespace(name="g-ns", description="golden"),
            "6ySKWiEO2f9OOI2Viw1mXGoCqvEfEeRMLOb/seliQDA=",
        ),
    ],
)
def test_hash_matches_the_known_value(namespace: Namespace, expected: str) -> None:
    assert namespace_hash(namespace) == expected


def test_hash_is_independent_of_the_order_of_meta() -> None:
    one, other = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert namespace_hash(Namespace(name="n", meta=one)) == namespace_hash(
        Namespace(name="n", meta=other)
    )
    assert namespace_hash(Namespace(name="n", meta=one)) != namespace_hash(Namespace(name="n"))
