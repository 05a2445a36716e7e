"""Every recorded job registration and validation, with all of Nomad's errors."""

import json

import pytest

from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.validate import ValidationResult, scaling_refusal, validate
from tests.unit.jobspec import recorded
from tests.wire.scenarios import names_in

# Nomad's errors about stored state, not about the job.
OF_THE_STATE = (
    "is in nonexistent namespace",
    "is in nonexistent node pool",
    "No path to region",
    "job source size",
    "Enforcing job modify index",
    "cannot update",
)
# Additional errors by design, and Nomad errors that are not implemented yet.
DECIDED = names_in("decided.txt") | names_in("pending.txt")
OF_THE_REQUEST = ("json:", "Eval priority", "Job ID", "unexpected EOF", "Job must")


def is_about_the_job(step: recorded.Step) -> bool:
    text = json.dumps(step.get("response", {}).get("body"))
    return recorded.sent_job(step) is not None and not any(
        part in text for part in (*OF_THE_STATE, *OF_THE_REQUEST)
    )


def steps(*, path: str) -> list[recorded.Step]:
    found = [
        step
        for name, steps in recorded.scenarios()
        if not name.startswith("acl-")  # their errors concern permissions
        for step in steps
        if is_about_the_job(step)
    ]
    return [step for step in found if step["request"]["path"].startswith(path)]


def findings(step: recorded.Step) -> ValidationResult:
    return validate(canonicalize(recorded.document(recorded.sent_job(step))))


def is_warned_like(step: recorded.Step, validation_result: ValidationResult) -> bool:
    """Return whether a job gets a step's recorded warnings; true if warnings are not compared."""
    expected = step["response"]["body"].get("Warnings", "")
    return "/Warnings" in step.get("loose", ()) or validation_result.warnings == expected


def is_registration(step: recorded.Step) -> bool:
    return "dispatch" not in step["request"]["path"] and step["response"]["status"] in (200, 500)


REGISTERED = [step for step in steps(path="/v1/job") if is_registration(step)]
VALIDATED = steps(path="/v1/validate/job")
REFUSED_EARLY = [step for step in steps(path="/v1/job") if step["response"]["status"] == 400]


def test_recorded_responses_exist() -> None:
    assert (len(REGISTERED), len(VALIDATED), len(REFUSED_EARLY)) >= (250, 90, 2)


@pytest.mark.parametrize(
    "step", [step for step in REGISTERED if step["id"] not in DECIDED], ids=lambda step: step["id"]
)
def test_job_is_refused_with_the_text_of_nomad_or_accepted(step: recorded.Step) -> None:
    refusal = step["response"]["body"] if step["response"]["status"] == 500 else ""
    assert findings(step).error == refusal


@pytest.mark.parametrize(
    "step",
    [
        step
        for step in REGISTERED
        if isinstance(step["response"].get("body"), dict) and step["id"] not in DECIDED
    ],
    ids=lambda step: step["id"],
)
def test_an_accepted_job_gets_the_warnings_of_nomad(step: recorded.Step) -> None:
    assert is_warned_like(step, findings(step))


@pytest.mark.parametrize(
    "step", [step for step in VALIDATED if step["id"] not in DECIDED], ids=lambda step: step["id"]
)
def test_validate_endpoint_lists_the_errors_of_nomad(step: recorded.Step) -> None:
    body, found = step["response"]["body"], findings(step)
    assert found.error == body["Error"]
    assert list(found.errors) == (body["ValidationErrors"] or [])
    assert is_warned_like(step, found)


@pytest.mark.parametrize("step", REFUSED_EARLY, ids=lambda step: step["id"])
def test_scaling_of_a_system_job_is_refused_before_anything_else(step: recorded.Step) -> None:
    assert scaling_refusal(recorded.document(recorded.sent_job(step))) == step["response"]["body"]
