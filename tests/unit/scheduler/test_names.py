"""Names of allocations: the next free index."""

import msgspec

from daemon.scheduler.alloc_names import AllocNameIndex
from storage.records.allocation import Allocation
from tests.samples import job
from tests.unit.scheduler.world import World

SAMPLE = World().run(job()).place[0]


def having(*numbers: int) -> list[Allocation]:
    return [msgspec.structs.replace(SAMPLE, name=f"web.web[{number}]") for number in numbers]


def test_lowest_free_index_is_used_first() -> None:
    names = AllocNameIndex("web", "web", having(0, 3, 1))
    assert [names.next() for _ in range(3)] == ["web.web[2]", "web.web[4]", "web.web[5]"]


def test_names_contain_job_and_group() -> None:
    assert AllocNameIndex("a/b", "c.d", []).next() == "a/b.c.d[0]"


def test_canaries_take_the_names_of_their_predecessors() -> None:
    names = AllocNameIndex("web", "web", having(0, 1, 2))
    got = names.canaries(2, existing=having(0), to_replace=having(2, 1, 0))
    assert got == ["web.web[1]", "web.web[2]"]


def test_additional_canaries_have_free_names() -> None:
    names = AllocNameIndex("web", "web", having(0, 1))
    got = names.canaries(4, existing=[], to_replace=having(0, 1))
    assert got == ["web.web[0]", "web.web[1]", "web.web[2]", "web.web[3]"]


def test_replacement_keeps_an_unused_name() -> None:
    twice = having(0, 0, 1)
    names = AllocNameIndex("web", "web", twice)
    assert [names.for_replacement(alloc) for alloc in twice] == [
        "web.web[2]",
        "web.web[0]",
        "web.web[1]",
    ]
