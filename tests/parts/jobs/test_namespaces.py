"""Namespaces: permitted names and fields, and reasons that prevent a deletion."""

import pytest

from daemon.jobs.namespaces import apply, remove
from storage.errors import Invalid, Refused
from storage.queries import jobs, namespaces
from storage.records.namespace import Namespace
from storage.store import Store
from tests.samples import job


def names(store: Store) -> list[str]:
    return [namespace.name for namespace in store.read(namespaces.list_all)]


async def test_changed_namespace_keeps_its_create_index(store: Store) -> None:
    created = await apply(store, Namespace(name="ops"))
    changed = await apply(store, Namespace(name="ops", description="ours"))
    found = store.read(lambda db: namespaces.find(db, "ops"))
    assert found is not None
    assert (found.create_index, found.modify_index) == (created, changed)
    assert found.description == "ours"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "a" * 129, "a\n"])
async def test_invalid_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(Invalid, match="Must match regex"):
        await apply(store, Namespace(name=name))
    assert names(store) == ["default"]


async def test_empty_namespace_is_deleted(store: Store) -> None:
    await apply(store, Namespace(name="ops"))
    await remove(store, "ops", "global")
    assert names(store) == ["default"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("default", "can not delete default namespace"), ("none", "namespace not found")],
)
async def test_refused_removal_of_a_namespace_names_the_reason(
    store: Store, name: str, words: str
) -> None:
    with pytest.raises(Refused, match=words):
        await remove(store, name, "global")


async def test_namespace_with_a_running_job_is_not_deleted(store: Store) -> None:
    await apply(store, Namespace(name="ops"))
    await store.write(lambda tx: jobs.append_version(tx, job("web", namespace="ops")))
    with pytest.raises(Refused) as caught:
        await remove(store, "ops", "world")
    assert str(caught.value) == (
        '1 error occurred:\n\t* namespace "ops" has non-terminal jobs in regions: [world]\n\n'
    )
