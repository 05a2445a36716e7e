"""The elements of a step in a run: state, attempt, item and allocation."""

from typing import Any

import pytest

from daemon.api import flows
from daemon.api.routes import READ
from storage.errors import NotFound
from storage.records.flow import FlowRunView, RunActType, RunElement
from storage.store import Store
from tests.parts.api.requests import caller, request
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import act, begun, end, report, step, workflow

READER = 'namespace "default" { policy = "read" }'


async def page(
    store: Store, name: str, query: str = "", **more: Any
) -> tuple[list[RunElement], str]:
    """Return a page of elements, and the token of the next page."""
    asked = request(
        store, READ, caller(READER), query=f"elements={name}{query}", job_id="etl", **more
    )

    _, reply = await store.read_long(lambda db: (0, flows.read_run(asked, db)))
    assert isinstance(reply.body, FlowRunView)
    assert [step.name for step in reply.body.steps] == [name]
    return list(reply.body.elements or ()), reply.next_token


async def elements(cluster: Cluster, name: str = "a") -> list[RunElement]:
    found, token = await page(cluster.store, name)
    assert token == ""
    return found


async def states(cluster: Cluster, name: str = "a") -> list[str]:
    return [element.state for element in await elements(cluster, name)]


def allocs(cluster: Cluster, name: str = "a") -> dict[int, Any]:
    return {
        alloc.index: alloc
        for alloc in sorted(cluster.allocations("etl"), key=lambda alloc: alloc.create_index)
        if alloc.task_group == name
    }


async def test_elements_have_states_exit_codes_and_allocations(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=4, parallel="3")))
    assert await states(cluster) == ["open", "open", "open", "waiting"]
    await report(cluster, allocs(cluster)[0])
    await report(cluster, allocs(cluster)[2], code=7)
    found = await elements(cluster)
    assert [element.state for element in found] == ["succeeded", "open", "failed", "waiting"]
    assert [element.exit_code for element in found] == [0, 0, 7, 0]
    placed = allocs(cluster)
    assert [element.alloc_id for element in found] == [
        *(placed[index].id for index in range(3)),
        "",
    ]
    assert {element.attempt for element in found} == {1}


async def test_elements_of_waiting_and_skipped_steps_have_its_state(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", count=2)))
    assert await states(cluster, "b") == ["waiting", "waiting"]
    await end(cluster, "a", code=1)
    await cluster.work()
    assert await states(cluster, "b") == ["skipped", "skipped"]


async def test_elements_have_the_items_of_their_lists(cluster: Cluster) -> None:
    await begun(
        cluster,
        workflow(
            step("plan"),
            step("load", "plan", for_each="${output.plan.shards}"),
            step("check", "load[i]"),
            step("os", matrix='{"os": ["a", "b"], "py": [3, 4]}'),
        ),
    )
    items = [(element.key, element.value) for element in await elements(cluster, "os")]
    assert items[0] == ("a,3", '{"os":"a","py":3}')
    assert [key for key, _ in items] == ["a,3", "a,4", "b,3", "b,4"]
    await end(cluster, "plan", shards='{"eu": {"n": 1}, "us": "text"}')
    await cluster.work()
    await end(cluster, "load")
    await cluster.work()
    for name in ("load", "check"):
        items = [(element.key, element.value) for element in await elements(cluster, name)]
        assert items == [("eu", '{"n":1}'), ("us", "text")]


async def test_rerun_elements_have_the_attempt_in_which_they_ran(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a")))
    await report(cluster, allocs(cluster)[0])
    await report(cluster, allocs(cluster)[1], code=3)
    await cluster.work()
    first = allocs(cluster)
    cluster.clock.time += 10**9
    await act(cluster, RunActType.RERUN, failed=True)
    found = await elements(cluster)
    assert [element.state for element in found] == ["succeeded", "waiting"]
    assert (found[0].alloc_id, found[1].alloc_id) == (first[0].id, "")
    await cluster.work()
    found = await elements(cluster)
    assert [element.state for element in found] == ["succeeded", "open"]
    assert [element.attempt for element in found] == [1, 2]
    assert found[1].alloc_id not in ("", first[1].id)


async def test_elements_have_pages_in_both_directions(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=600), step("b", "a")))
    first, token = await page(cluster.store, "a", "&per_page=260")
    assert ([element.index for element in first], token) == ([*range(260)], "260")
    second, token = await page(cluster.store, "a", f"&per_page=260&next_token={token}")
    assert ([element.index for element in second], token) == ([*range(260, 520)], "520")
    last, token = await page(cluster.store, "a", f"&per_page=260&next_token={token}")
    assert ([element.index for element in last], token) == ([*range(520, 600)], "")
    down, token = await page(cluster.store, "a", "&per_page=2&reverse=true")
    assert ([element.index for element in down], token) == ([599, 598], "597")
    down, token = await page(cluster.store, "a", "&per_page=9&reverse=true&next_token=1")
    assert ([element.index for element in down], token) == ([1, 0], "")
    for token in ("600", "99999999999999999999"):
        assert await page(cluster.store, "a", f"&next_token={token}") == ([], "")


async def test_a_page_of_elements_is_limited_in_number_and_size(cluster: Cluster) -> None:
    long = '{"os": ["' + "x" * 40_000 + '"], "n": [' + ",".join(map(str, range(30))) + "]}"
    await begun(
        cluster, workflow(step("a", count=1200, parallel="1"), step("b", matrix=long, parallel="1"))
    )
    found, token = await page(cluster.store, "a", "&per_page=5000")
    assert (len(found), token) == (1000, "1000")
    found, token = await page(cluster.store, "b")
    assert 5 < len(found) < 10
    assert token == str(len(found))


async def test_elements_of_an_unknown_step_or_run_are_not_found(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    with pytest.raises(NotFound, match="run 1 has no step 'none'"):
        await page(cluster.store, "none")
    with pytest.raises(NotFound, match="run 7 not found"):
        await page(cluster.store, "a", "&number=7")
