"""The pages of workflow runs: their contents, and the operations that they send."""

import pytest

from daemon.ui import flows, job
from storage.records.flow import FlowStatus, StepState
from tests.parts.evals.test_workflows import CHAIN, end, run_of, step, workflow, written
from tests.parts.ui.conftest import Browser, Site

STEERER = 'namespace "default" { policy = "write" }'
GATED = workflow(
    step("a"), step("b", "a", meta={"steward_needs": "a", "steward_gate": "Publish <b>it</b>?"})
)


async def begin(site: Site) -> None:
    await site.cluster.register(CHAIN)
    await site.cluster.work()


async def test_a_run_is_shown_with_its_graph_and_its_steps(open_site: Site) -> None:
    await begin(open_site)
    browser = open_site.browser()
    page = (await browser.get("/ui/job/etl/run")).text
    assert "Run 1" in page
    assert page.count('<g class="step is-') == 3
    assert page.count('<path class="need') == 2
    assert "waits for a" in page
    assert "steward runs cancel etl" in page
    assert "Longest chain" in page
    listed = (await browser.get("/ui/runs")).text
    assert 'href="/ui/job/etl/run?number=1"' in listed
    assert 'href="/ui/job/etl/run"' in (await browser.get("/ui/job/etl")).text


async def test_a_page_lists_the_first_steps_with_a_link_to_all(
    open_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "_STEPS", 2)
    await begin(open_site)
    browser = open_site.browser()
    page = (await browser.get("/ui/job/etl/run")).text
    assert (page.count('<tr id="step-'), "The first 2 steps of 3." in page) == (2, True)
    page = (await browser.get("/ui/job/etl/run?steps=all")).text
    assert (page.count('<tr id="step-'), "All steps" in page) == (3, False)


async def test_page_of_a_job_lists_the_first_groups_with_a_link_to_all(
    open_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_GROUPS", 2)
    await begin(open_site)
    browser = open_site.browser()
    page = (await browser.get("/ui/job/etl")).text
    assert (page.count("Count of "), "The first 2 groups of 3." in page) == (2, True)
    page = (await browser.get("/ui/job/etl?groups=all")).text
    assert (page.count("Count of "), "All groups" in page) == (3, False)


async def test_runs_are_filtered_by_job_and_state(open_site: Site) -> None:
    await begin(open_site)
    browser = open_site.browser()
    for query, found in (
        ("search=et", True),
        ("search=other", False),
        ("status=running", True),
        ("status=failed", False),
        ("status=nonsense", True),
    ):
        text = (await browser.get(f"/ui/runs?{query}")).text
        assert ("/ui/job/etl/run?number=1" in text) == found, query


async def test_failed_step_is_accepted_and_the_run_continues(open_site: Site) -> None:
    await begin(open_site)
    browser = open_site.browser()
    await end(open_site.cluster, "a", code=3)
    await open_site.cluster.work()
    page = (await browser.get("/ui/job/etl/run")).text
    assert 'action="/ui/job/etl/run/accept"' in page
    answer = await browser.send("/ui/job/etl/run/accept", None, step="a", note="known", number="1")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/job/etl/run")
    await open_site.cluster.work()
    states = {step.name: step.state for step in run_of(open_site.cluster).steps}
    assert (states["a"], states["b"]) == (StepState.SUCCEEDED, StepState.OPEN)
    assert "known" in (await browser.get("/ui/job/etl/run")).text


async def test_outputs_come_with_an_acceptance(open_site: Site) -> None:
    await open_site.cluster.register(workflow(step("a", count=2), step("b", "a")))
    await open_site.cluster.work()
    browser = open_site.browser()
    for _ in range(2):
        await end(open_site.cluster, "a", code=3)
    await open_site.cluster.work()
    page = (await browser.get("/ui/job/etl/run")).text
    assert 'name="outputs"' in page
    assert 'name="element"' in page
    fields = {"step": "a", "number": "1", "element": "1"}
    for outputs, words in (
        ("rows", "is not of the form NAME=VALUE"),
        ("rows=1\nrows=2", "is named twice"),
        ("no-name=1", "contains the invalid name"),
    ):
        answer = await browser.send("/ui/job/etl/run/accept", None, **fields, outputs=outputs)
        assert (answer.status_code, words in answer.text) == (400, True)
    sent = "rows=1 = 1\r\n\r\npath=/x\r\n"
    answer = await browser.send("/ui/job/etl/run/accept", None, **fields, outputs=sent)
    assert answer.status_code == 303
    assert written(open_site.cluster) == {("a", 1): {"rows": "1 = 1", "path": "/x"}}


async def test_one_step_runs_alone(open_site: Site) -> None:
    await open_site.cluster.register(workflow(step("a", count=2), step("b", "a")))
    await open_site.cluster.work()
    browser = open_site.browser()
    assert 'action="/ui/job/etl/run/step"' not in (await browser.get("/ui/job/etl/run")).text
    for name in "aab":
        await end(open_site.cluster, name)
        await open_site.cluster.work()
    page = (await browser.get("/ui/job/etl/run")).text
    assert 'action="/ui/job/etl/run/step"' in page
    assert "steward runs step etl a" in page
    fields = {"step": "a", "element": "1"}
    answer = await browser.send("/ui/job/etl/run/step", None, **fields, number="x")
    assert (answer.status_code, "is not the number of a run" in answer.text) == (400, True)
    answer = await browser.send("/ui/job/etl/run/step", None, **fields, number="", note="again")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/job/etl/run")
    await open_site.cluster.work()
    page = (await browser.get("/ui/job/etl/run")).text
    assert "One step by hand: a[1]." in page
    assert 'number=1">run 1</a>' in page
    assert "triggered by step-by-hand" in page
    assert "only step a[1]" in (await browser.get("/ui/runs")).text


async def test_a_run_is_canceled_and_run_again(open_site: Site) -> None:
    await begin(open_site)
    browser = open_site.browser()
    assert (await browser.send("/ui/job/etl/run/cancel")).status_code == 303
    await end(open_site.cluster, "a")
    await open_site.cluster.work()
    assert run_of(open_site.cluster).status == FlowStatus.CANCELED
    assert (await browser.send("/ui/job/etl/run/rerun", None, every="1")).status_code == 303
    await open_site.cluster.work()
    assert run_of(open_site.cluster).status == FlowStatus.RUNNING


@pytest.mark.parametrize(
    ("act", "fields", "status", "words"),
    [
        ("skip", {"step": "nothing"}, 400, "has no step"),
        ("skip", {"step": "b", "number": "x"}, 400, "is not the number of a run"),
        ("accept", {"step": "b"}, 400, "only a failure can be accepted"),
        ("rerun", {}, 400, "exactly one of"),
    ],
)
async def test_inapplicable_action_is_refused_with_its_reason(
    open_site: Site, act: str, fields: dict[str, str], status: int, words: str
) -> None:
    await begin(open_site)
    answer = await open_site.browser().send(f"/ui/job/etl/run/{act}", None, **fields)
    assert (answer.status_code, words in answer.text) == (status, True)


async def gate(site: Site) -> Browser:
    await site.cluster.register(GATED)
    await site.cluster.work()
    await end(site.cluster, "a")
    await site.cluster.work()
    return site.browser()


async def test_gate_is_shown_as_a_question(open_site: Site) -> None:
    browser = await gate(open_site)
    page = (await browser.get("/ui/job/etl/run")).text
    assert "Publish &lt;b&gt;it&lt;/b&gt;?" in page
    assert (await browser.send("/ui/job/etl/run/approve", None, step="b")).status_code == 303
    await open_site.cluster.work()
    assert run_of(open_site.cluster).steps[1].state == StepState.OPEN


async def test_submitter_of_a_job_cannot_approve_its_gate(site: Site) -> None:
    browser = await gate(site)
    await browser.sign_in(await site.token(STEERER))
    page = (await browser.get("/ui/job/etl/run")).text
    assert 'action="/ui/job/etl/run/approve"' not in page
    assert 'action="/ui/job/etl/run/skip"' not in page
    assert 'action="/ui/job/etl/run/cancel"' in page
    assert "approve-run on the namespace default" in page
    assert (await browser.send("/ui/job/etl/run/approve", None, step="b")).status_code == 403
