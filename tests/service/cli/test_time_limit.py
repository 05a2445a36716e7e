"""Every interface names the `max_run_duration` that ended a batch job."""

import json

from storage.records.base import SECOND
from tests.service.cli.test_commands import FOREVER, job_file
from tests.service.daemon import Steward

WORDS = 'task "main": The allocation has run for 1s, its maximum run time'


async def test_time_limit_is_named_on_every_surface(steward: Steward) -> None:
    text = job_file("late", FOREVER, "batch", MaxRunDuration=SECOND)
    run = await steward.cli("run", "-", stdin=text)
    assert run.returncode == 1
    said = run.stdout.decode() + run.stderr.decode()
    assert "1 ended by max_run_duration" in said
    assert f"ended by max_run_duration: {WORDS}" in said
    (alloc,) = await steward.get("/v1/job/late/allocations")
    assert (alloc["ClientStatus"], alloc["ClientDescription"]) == (
        "complete",
        "allocation exceeded max_run_duration",
    )
    state = await steward.get("/v1/job/late/state")
    assert (state["State"], state["Reason"]) == ("failed", WORDS)
    assert state["Error"]["Kind"] == "Max Run Duration Exceeded"
    failed = await steward.get("/v1/jobs/statuses", states="true", state="failed")
    assert [line["ID"] for line in failed] == ["late"]
    for command, words in {
        ("job", "status", "late"): ("Status        = failed", WORDS, "complete, time limit"),
        ("job", "explain", "late"): ("was ended by max_run_duration of 1s, and is not placed",),
        ("alloc", "status", alloc["ID"]): (WORDS, "is not retried: it was ended by"),
        ("status",): ("failed", WORDS),
    }.items():
        shown = (await steward.cli(*command)).stdout.decode()
        assert [one for one in words if one not in shown] == [], (command, shown)
    page = await steward.request("GET", "/ui/job/late")
    assert "The allocation has run for 1s, its maximum run time" in page.text
    assert '<span class="tag">time limit</span>' in page.text
    page = await steward.request("GET", f"/ui/allocation/{alloc['ID']}")
    assert '<span class="tag">time limit</span>' in page.text


async def test_time_limit_is_named_in_the_run_of_a_periodic_job(steward: Steward) -> None:
    text = json.loads(job_file("nightly", FOREVER, "batch", MaxRunDuration=SECOND))
    text["Job"]["Periodic"] = {"Spec": "@yearly", "SpecType": "cron"}
    await steward.cli("run", "-", stdin=json.dumps(text))
    await steward.cli("job", "periodic", "force", "nightly")
    shown = await steward.until("/v1/job/nightly/state", lambda one: one["State"] == "failing")
    assert shown["Reason"] == f"the last run failed: {WORDS}"
    (run,) = await steward.get("/v1/job/nightly/runs")
    assert (run["Result"], run["Reason"]) == ("failed", WORDS)
