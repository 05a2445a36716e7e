"""Facts about the groups of a job: decisions look at each group once for a version."""

from collections.abc import Iterator

import msgspec

from daemon.evals.cluster_state import facts_of
from daemon.flow.lists import has_lists
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Network, Port
from tests.samples import group, job, task


class Counted(list[TaskGroup]):
    """A list that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[TaskGroup]:
        self.reads += 1
        return super().__iter__()


def step(name: str, networks: list[Network] | None = None, **keys: str) -> TaskGroup:
    meta = {f"steward_{key}": text for key, text in keys.items()}
    return group(name, task(), meta=meta, networks=networks)


def counted(*groups: TaskGroup) -> tuple[Job, Counted]:
    found = Counted(groups)
    return msgspec.structs.replace(job("etl", type="batch"), task_groups=found), found


def seen(version: Job) -> tuple[object, ...]:
    facts = facts_of(version)
    return (
        facts.takes_dynamic_ports,
        facts.has_step_queues,
        [group.name for group in facts.dated],
        [group.name for group in facts.naming_outputs],
        [*facts.element_needs],
        has_lists(version),
    )


def test_groups_of_a_version_are_read_once() -> None:
    version, groups = counted(step("a"), step("b", needs="a[i]"), step("c", **{"if": "a.x = 1"}))
    first = seen(version)
    assert first == (False, False, [], ["c"], [("b", frozenset({"a"}))], True)
    reads = groups.reads
    for _ in range(100):
        assert seen(msgspec.structs.replace(version, version=7)) == first
    assert groups.reads == reads


def test_another_version_has_its_own_facts() -> None:
    ports = [Network(dynamic_ports=[Port(label="http")])]
    one, _ = counted(step("a"))
    two, _ = counted(step("a", ports), step("b", concurrency="q", calendar="work"))
    plain, other = seen(one), seen(two)
    assert plain == (False, False, [], [], [], False)
    assert other == (True, True, ["b"], [], [], False)
    assert (seen(one), seen(two)) == (plain, other)
