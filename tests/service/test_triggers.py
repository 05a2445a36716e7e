"""Jobs that start after others in a real daemon, also across a kill."""

from typing import Any

from tests.service.daemon import Steward
from tests.service.test_workflows import shell, workflow


def follower(job_id: str, after: str, **keys: str) -> dict[str, Any]:
    return {
        **workflow(shell("a", 'test "$NOMAD_META_rows" = 17'), job_id=job_id),
        "ParameterizedJob": {"MetaOptional": ["rows"]},
        "Meta": {"steward_after": after, **{f"steward_{key}": one for key, one in keys.items()}},
    }


async def fired(steward: Steward, job_id: str, number: int = 1) -> list[dict[str, Any]]:
    """Return the trigger ledger of a job once `number` of its entries have started a job."""

    def are_there(found: list[dict[str, Any]]) -> bool:
        return sum(item["State"] == "fired" for item in found) >= number

    found: list[dict[str, Any]] = await steward.until(f"/v1/job/{job_id}/triggers", are_there)
    return found


async def test_workflow_starts_a_follower_and_a_plain_job_starts_another(steward: Steward) -> None:
    keys = {"after_meta": '{"rows": "${output.plan.rows}"}'}
    await steward.register(follower("load", "etl", **keys))
    await steward.register(follower("page", "load", after_when="any"))
    script = 'echo rows=17 >> "$STEWARD_OUTPUT"'
    await steward.register(workflow(shell("plan", script), shell("b", "exit 0", "plan")))
    (line,) = await fired(steward, "load")
    assert (line["SourceID"], line["Number"], line["Status"]) == ("etl", 1, "succeeded")
    child = line["ChildID"]
    await steward.until(
        f"/v1/job/{child.replace('/', '%2F')}", lambda item: item["Status"] == "dead"
    )
    (after,) = await fired(steward, "page")
    assert (after["RunJobID"], after["Status"], after["Depth"]) == (child, "succeeded", 2)
    shown = (await steward.cli("job", "triggers", "load")).stdout.decode()
    assert "default/etl; success of each" in shown
    assert "default/page (any)" in shown
    assert child in shown
    status = (await steward.cli("job", "status", "load")).stdout.decode()
    assert "Followed By" in status
    told = (await steward.cli("job", "explain", "load")).stdout.decode()
    assert 'it starts after each run of "default/etl" has succeeded' in told
    page = await steward.request("GET", "/ui/job/load")
    assert "Jobs before and after" in page.text


async def test_a_join_survives_a_kill_and_starts_once(steward: Steward) -> None:
    await steward.register(follower("report", "a, b", after_join="all", after_when="any"))
    await steward.register(workflow(shell("a", "exit 0"), job_id="a"))
    await steward.until(
        "/v1/job/report/triggers",
        lambda found: [item for item in found if item["State"] == "waiting"],
    )
    await steward.kill_and_restart()
    await steward.register(workflow(shell("b", "exit 3"), job_id="b"))
    lines = await fired(steward, "report", 2)
    assert len({line["ChildID"] for line in lines}) == 1
    await steward.kill_and_restart()
    children = await steward.get("/v1/jobs", prefix="report/")
    assert len(children) == 1


async def test_a_source_that_does_not_exist_is_a_warning(steward: Steward) -> None:
    body = {"Job": follower("load", "nothing")}
    said = 'steward_after names "default/nothing", which does not exist yet'
    for path in ("/v1/job/load/plan", "/v1/jobs"):
        assert said in (await steward.post(path, body))["Warnings"]
    links = await steward.get("/v1/job/load/links")
    assert [source["JobID"] for source in links["Sources"]] == ["nothing"]
    assert (await steward.request("GET", "/v1/job/none/triggers")).status_code == 404
