"""Every recorded Nomad diff, of plans and of versions, recomputed from the same jobs."""

import json
from typing import Any

import msgspec
import pytest

from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.diffs.annotations import annotate
from storage.records.codec import HEAD_FIELDS, job_document
from storage.records.evaluation import PlanAnnotations
from storage.records.job import Job
from tests.unit.jobspec import recorded


def plans() -> list[tuple[recorded.Step, recorded.Step | None]]:
    """Return the steps that plan a job, each with the step that registered it before."""
    found = []
    for name, steps in recorded.scenarios():
        registered: dict[str, recorded.Step] = {}
        for step in steps:
            job, response = recorded.sent_job(step), step.get("response", {})
            if name.startswith("acl-") or job is None or response.get("status") != 200:
                continue
            if step["request"]["path"].endswith("/plan") and response["body"]["Diff"]:
                found.append((step, registered.get(job["ID"])))
            elif step["request"]["path"] == "/v1/jobs":
                registered[job["ID"]] = step
    return found


def versions() -> list[recorded.Step]:
    """Return the recorded versions with their differences."""
    return [
        step
        for _, steps in recorded.scenarios()
        for step in steps
        if isinstance(body := step.get("response", {}).get("body"), dict) and body.get("Diffs")
    ]


def complete(step: recorded.Step | None) -> Job | None:
    return canonicalize(recorded.document(recorded.sent_job(step))) if step else None


def stored(version: dict[str, Any]) -> Job:
    kept = {name: value for name, value in version.items() if name not in HEAD_FIELDS}
    return msgspec.convert(kept, Job)


def stopped_if(body: dict[str, Any], job: Job | None) -> Job | None:
    """Return the job as it was before a recorded plan: stopped, if the plan's diff says so."""
    was = {field["Name"]: field["Old"] for field in body["Diff"]["Fields"] or ()}
    return msgspec.structs.replace(job, stop=was.get("Stop") == "true") if job else None


def bases_of(jobs: list[Job], versions: list[dict[str, Any]], query: dict[str, str]) -> list[Job]:
    """Return the version that each version is compared with."""
    by_number = {str(one["Version"]): job for one, job in zip(versions, jobs, strict=True)}
    by_tag = {
        version["VersionTag"]["Name"]: version["Version"]
        for version in versions
        if version["VersionTag"]
    }
    base = query.get("diff_version", str(by_tag.get(query.get("diff_tag"))))
    return [by_number[base]] * len(jobs) if base in by_number else jobs[1:]


def accepted() -> list[recorded.Step]:
    """Return the registrations that Nomad accepted."""
    return [
        step
        for name, steps in recorded.scenarios()
        for step in steps
        if not name.startswith("acl-")
        and step.get("response", {}).get("status") == 200
        and step.get("request", {}).get("path") == "/v1/jobs"
        and recorded.sent_job(step) is not None
    ]


PLANS = plans()


def test_recorded_plans_exist() -> None:
    assert len(PLANS) >= 25
    assert len(versions()) >= 3


@pytest.mark.parametrize(("plan", "before"), PLANS, ids=lambda step: step["id"] if step else "new")
def test_plan_shows_the_annotations_of_nomad(
    plan: recorded.Step, before: recorded.Step | None
) -> None:
    body, new = plan["response"]["body"], complete(plan)
    assert new is not None
    planned = msgspec.convert(body["Annotations"], PlanAnnotations).desired_tg_updates
    job_diff = annotate(diff_jobs(stopped_if(body, complete(before)), new), planned)
    assert msgspec.to_builtins(job_diff) == body["Diff"]


@pytest.mark.parametrize("step", versions(), ids=lambda step: step["id"])
def test_version_differences_match_nomad(step: recorded.Step) -> None:
    body = step["response"]["body"]
    jobs = [stored(version) for version in body["Versions"]]
    bases = bases_of(jobs, body["Versions"], step["request"]["query"])
    found = [diff_jobs(old, new) for old, new in zip(bases, jobs, strict=False)]
    assert msgspec.to_builtins(found) == body["Diffs"]


@pytest.mark.parametrize("step", accepted(), ids=lambda step: step["id"])
def test_resubmitted_job_has_no_differences(step: recorded.Step) -> None:
    job = complete(step)
    assert job is not None
    again = canonicalize(recorded.document(json.loads(job_document(job))))
    job_diff = diff_jobs(job, again)
    assert (job_diff.type, [group.type for group in job_diff.task_groups or ()]) == (
        "None",
        ["None"] * len(job_diff.task_groups or ()),
    )
