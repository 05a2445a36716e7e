"""Commands that change running jobs, against a fake daemon: requests, output and exit statuses."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from storage.records.deployment import Deployment, DeploymentGroup
from storage.records.evaluation import PlacementMetric
from tests.parts.cli.conftest import FakeDaemon, Terminal
from tests.parts.cli.test_commands import EVAL, evaluated, line, stub, wire
from tests.samples import NOW, group, job

DEPLOYMENT = "d1d1d1d1-7d6e-4bd5-8a0b-0d6c34b4a1f2"
PATH = f"/v1/deployment/{DEPLOYMENT}"
DONE = {"EvalID": EVAL, "EvalCreateIndex": 7, "Index": 7}


def deployed(status: str = "running", **fields: Any) -> Any:
    state = DeploymentGroup(desired_total=2, placed_allocs=2, **fields)
    return wire(
        Deployment(
            id=DEPLOYMENT,
            namespace="default",
            job_id="web",
            job_version=3,
            job_modify_index=1,
            job_spec_modify_index=1,
            job_create_index=1,
            task_groups={"web": state},
            status=status,
            status_description=f"It is {status}",
            eval_priority=50,
            create_index=5,
            modify_index=6,
            create_time=NOW,
            modify_time=NOW,
        )
    )


@pytest.fixture(autouse=True)
def _known(fake: FakeDaemon) -> None:
    fake.tell("/v1/jobs", [stub()])
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated())
    fake.tell("/v1/job/web/allocations", [line()])
    fake.tell("/v1/deployments", [deployed()])


# ---- job scale, job eval ----------------------------------------------------------------------


def test_a_group_is_scaled_and_followed(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web/scale", DONE, method="POST")
    result = terminal.type("job", "scale", "--message", "busy", "web", "api", "3")
    assert (result.exit_code, result.stderr) == (0, "")
    assert fake.asked("/v1/job/web/scale")[0].body == {
        "Target": {"Group": "api"},
        "Count": 3,
        "Message": "busy",
    }
    assert result.stdout.splitlines()[-1] == 'job "web": allocations: 1 running'


def test_the_only_group_needs_no_name(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web", wire(job("web", group("api"))))
    fake.tell("/v1/job/web/scale", DONE, method="POST")
    result = terminal.type("job", "scale", "--detach", "--check-index", "5", "web", "3")
    assert result.exit_code == 0
    body = fake.asked("/v1/job/web/scale")[0].body
    assert (body["Target"], body["EnforceIndex"], body["JobModifyIndex"]) == (
        {"Group": "api"},
        True,
        5,
    )
    assert result.stdout == f'job "web": evaluation {EVAL}\n'


def test_several_groups_need_a_name(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web", wire(job("web", group("api"), group("db"))))
    result = terminal.type("job", "scale", "web", "3")
    assert (result.exit_code, result.stderr) == (
        1,
        'steward: job "web" has several groups; name one of them: api, db\n',
    )


@pytest.mark.parametrize("words", [("three",), ("api", "db", "3"), ("api", "many")])
def test_invalid_count_is_refused(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.type("job", "scale", "web", *words)
    assert result.exit_code == 1
    assert "is not [GROUP] COUNT" in result.stderr


def test_evaluation_is_requested(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web/evaluate", DONE, method="POST")
    result = terminal.type("job", "eval", "--force-reschedule", "web")
    assert result.exit_code == 0
    assert fake.asked("/v1/job/web/evaluate")[0].body == {
        "JobID": "web",
        "EvalOptions": {"ForceReschedule": True},
    }


def test_unplaced_job_ends_with_status_two(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web/evaluate", DONE, method="POST")
    metric = wire(PlacementMetric(nodes_in_pool=1, nodes_evaluated=1))
    fake.tell(f"/v1/evaluation/{EVAL}", {**evaluated(), "FailedTGAllocs": {"web": metric}})
    assert terminal.type("job", "eval", "web").exit_code == 2


# ---- job dispatch, job periodic ----------------------------------------------------------------


CHILD = "web/dispatch-1-ab"


def test_a_child_is_dispatched_with_meta_and_payload(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"\xff\x00")
    fake.tell("/v1/job/web/dispatch", {**DONE, "DispatchedJobID": CHILD}, method="POST")
    result = terminal.type(
        *("job", "dispatch", "--meta", "a=b=c", "--meta", "d=", "--priority", "60"),
        *("--id-prefix-template", "x", "--idempotency-token", "t", "web", str(tmp_path / "in")),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    (asked,) = fake.asked("/v1/job/web/dispatch")
    assert asked.body == {
        "Meta": {"a": "b=c", "d": ""},
        "Payload": base64.b64encode(b"\xff\x00").decode(),
        "IdPrefixTemplate": "x",
        "Priority": 60,
    }
    assert asked.query == {"idempotency_token": "t", "namespace": "default"}


def test_payload_can_be_read_from_standard_input(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web/dispatch", {**DONE, "DispatchedJobID": CHILD}, method="POST")
    result = terminal.type("job", "dispatch", "--detach", "web", "-", stdin="hello")
    assert fake.asked("/v1/job/web/dispatch")[0].body["Payload"] == "aGVsbG8="
    assert result.stdout.splitlines() == [
        f"Dispatched Job ID: {CHILD}",
        f"Evaluation ID: {EVAL}",
    ]


def test_repeated_token_creates_no_evaluation(fake: FakeDaemon, terminal: Terminal) -> None:
    answer = {"EvalID": "", "DispatchedJobID": CHILD}
    fake.tell("/v1/job/web/dispatch", answer, method="POST")
    result = terminal.type("job", "dispatch", "web")
    assert (result.exit_code, result.stdout) == (0, f"Dispatched Job ID: {CHILD}\n")


@pytest.mark.parametrize(("status", "exit_code"), [("complete", 0), ("failed", 2), ("lost", 2)])
def test_wait_for_a_child_reports_its_outcome(
    fake: FakeDaemon, terminal: Terminal, status: str, exit_code: int
) -> None:
    fake.tell("/v1/job/web/dispatch", {**DONE, "DispatchedJobID": CHILD}, method="POST")
    ended = {**evaluated(), "JobID": CHILD, "Type": "batch"}
    fake.tell(f"/v1/evaluation/{EVAL}", ended)
    placed = [line(client_status=now) for now in ("running", status)]
    fake.tell(f"/v1/job/{CHILD}/allocations", [placed[0]], [placed[1]])
    assert terminal.type("job", "dispatch", "--wait", "web").exit_code == exit_code


@pytest.mark.parametrize("meta", ["a", "=b"])
def test_meta_needs_key_and_value(terminal: Terminal, meta: str) -> None:
    result = terminal.type("job", "dispatch", "--meta", meta, "web")
    assert (result.exit_code, result.stderr) == (1, f"steward: --meta {meta!r} is not KEY=VALUE\n")


def test_unreadable_payload_has_a_reason(terminal: Terminal) -> None:
    result = terminal.type("job", "dispatch", "web", "/nowhere")
    assert result.exit_code == 1
    assert "cannot read the payload /nowhere: No such file" in result.stderr


def test_periodic_job_is_launched_by_force(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web/periodic/force", DONE, method="POST")
    result = terminal.type("job", "periodic", "force", "web")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, 'job "web": placed')


def test_sent_notifications_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    one = {
        "ID": 7,
        "Namespace": "default",
        "JobID": "web",
        "RunID": "web/1",
        "Event": "failure",
        "Reason": "it broke",
        "Webhook": "https://x.example/",
        "Command": "",
        "Status": "pending",
        "Attempts": 2,
        "NextAttempt": NOW + 10**9,
        "Error": "the receiver answered with 500",
        "CreateTime": NOW,
        "ModifyTime": NOW,
    }
    fake.tell("/v1/job/web/notifications", [one], [])
    result = terminal.type("job", "notifications", "web")
    assert re.split(" {2,}", result.stdout.splitlines()[1]) == [
        "2026-11-21T01:40:00Z",
        "failure",
        "web/1",
        "https://x.example/",
        "pending",
        "2",
        "2026-11-21T01:40:01Z",
        "it broke; the receiver answered with 500",
    ]
    result = terminal.type("job", "notifications", "web")
    assert result.stdout == "No notifications\n"


def test_slots_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    def slot(number: int, **fields: Any) -> Any:
        given = {"Slot": NOW + number, "Slots": 1, "DecidedAt": NOW, "Outcome": "skipped"}
        return {**given, **fields}

    fake.tell(
        "/v1/job/web/periodic/slots",
        [slot(2, Reason="a child is still at work"), slot(1, Outcome="launched", ChildID="c")],
    )
    result = terminal.type("job", "periodic", "slots", "-n", "1", "web")
    assert result.stdout.splitlines() == [
        "Slot                  Slots  Outcome  Child  Reason",
        "2026-11-21T01:40:00Z  1      skipped         a child is still at work",
    ]


@pytest.mark.parametrize(
    ("verb", "said"), [("pause", "is paused"), ("resume", "launches children on schedule")]
)
def test_schedule_is_paused_and_resumed(
    fake: FakeDaemon, terminal: Terminal, verb: str, said: str
) -> None:
    fake.tell(f"/v1/job/web/periodic/{verb}", {"Index": 7}, method="POST")
    assert f'job "web" {said}' in terminal.type("job", "periodic", verb, "web").stdout


def test_the_next_launches_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    clock = {"JobID": "web", "Namespace": "default", "Paused": True}
    slots = ["2026-11-21T02:00:00Z", "2026-11-21T03:00:00Z"]
    fake.tell(
        "/v1/job/web/periodic", {**clock, "NextLaunches": slots}, {**clock, "NextLaunches": []}
    )
    result = terminal.type("job", "periodic", "next", "web")
    assert result.stdout == f"Next launches: {slots[0]}, {slots[1]}\n"
    assert "is paused" in result.stderr
    assert terminal.type("job", "periodic", "next", "web").stdout == "No upcoming launches\n"


def test_explain_command_shows_missing_allocations(fake: FakeDaemon, terminal: Terminal) -> None:
    reason = {"Cause": "place", "Message": "too little room", "TaskGroup": "api", "Missing": 2}
    answer = {"JobID": "web", "Namespace": "default", "Status": "running", "Running": 1}
    fake.tell("/v1/job/web/explain", {**answer, "Reasons": [reason]}, {**answer, "Reasons": []})
    result = terminal.type("job", "explain", "web")
    assert result.stdout.splitlines() == [
        'job "web" is running; 1 allocation running',
        '- group "api": too little room',
    ]
    assert terminal.type("job", "explain", "web").stdout.endswith("Nothing is missing\n")


# ---- deployments -------------------------------------------------------------------------------


def test_deployments_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    result = terminal.type("deployment", "list", "--filter", 'Status == "running"')
    assert result.stdout.splitlines() == [
        "ID        Job ID  Job Version  Status   Description",
        "d1d1d1d1  web     3            running  It is running",
    ]
    assert fake.asked("/v1/deployments")[0].query["filter"] == 'Status == "running"'


def test_a_deployment_is_shown_with_its_groups(terminal: Terminal) -> None:
    result = terminal.type("deployment", "status", "d1d")
    lines = result.stdout.splitlines()
    assert lines[0] == f"ID          = {DEPLOYMENT}"
    assert lines[-1].split() == ["web", "false", "N/A", "2", "0", "2", "0", "0", "N/A"]


def test_an_unknown_deployment_is_named(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/deployments", [])
    result = terminal.type("deployment", "status", "ab")
    assert result.exit_code == 1
    assert "no deployment begins with 'ab'" in result.stderr


@pytest.mark.parametrize(
    ("ends", "exit_code"), [("successful", 0), ("failed", 1), ("cancelled", 0), ("paused", 0)]
)
def test_deployment_is_followed_until_its_end_or_a_promotion(
    fake: FakeDaemon, terminal: Terminal, ends: str, exit_code: int
) -> None:
    fake.tell(PATH, deployed(), deployed(healthy_allocs=1), deployed(ends, healthy_allocs=2))
    result = terminal.type("deployment", "status", "--monitor", "d1")
    assert result.exit_code == exit_code
    assert result.stdout.splitlines() == [
        "group  web  2/2 placed, 0 healthy",
        "group  web  2/2 placed, 1 healthy",
        "group  web  2/2 placed, 2 healthy",
        f"deployment d1d1d1d1 is {ends}: It is {ends}",
    ]


def test_follow_ends_when_canaries_need_a_promotion(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(PATH, deployed(desired_canaries=1, healthy_allocs=1))
    result = terminal.type("deployment", "status", "--monitor", "d1")
    assert result.stdout.splitlines()[-1] == "deployment d1d1d1d1 is running: It is running"


@pytest.mark.parametrize(
    ("options", "chosen"),
    [((), {"All": True}), (("--group", "a", "--group", "b"), {"Groups": ["a", "b"]})],
)
@pytest.mark.parametrize("words", [("deployment", "promote", "d1"), ("job", "promote", "web")])
def test_canaries_are_promoted(
    fake: FakeDaemon,
    terminal: Terminal,
    words: tuple[str, ...],
    options: tuple[str, ...],
    chosen: dict[str, Any],
) -> None:
    fake.tell("/v1/job/web/deployments", [deployed()])
    promoting = f"/v1/deployment/promote/{DEPLOYMENT}"
    fake.tell(promoting, DONE, method="POST")
    fake.tell(PATH, deployed("successful"))
    result = terminal.type(*words[:2], *options, words[2])
    assert (result.exit_code, result.stderr) == (0, "")
    assert fake.asked(promoting)[0].body == {"DeploymentID": DEPLOYMENT, **chosen}


def test_a_job_without_deployment_cannot_be_promoted(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web/deployments", [])
    result = terminal.type("job", "promote", "web")
    assert (result.exit_code, result.stderr) == (
        1,
        'steward: job "web" has no deployment to promote\n',
    )


def test_a_deployment_is_failed(fake: FakeDaemon, terminal: Terminal) -> None:
    failing = f"/v1/deployment/fail/{DEPLOYMENT}"
    fake.tell(failing, {**DONE, "RevertedJobVersion": 2}, method="POST")
    result = terminal.type("deployment", "fail", "--detach", "d1")
    assert result.stdout.splitlines() == [f"Evaluation ID: {EVAL}", "Reverted to version 2"]


@pytest.mark.parametrize(
    ("verb", "paused", "answer"),
    [("pause", True, {"EvalID": ""}), ("resume", False, DONE)],
)
def test_a_deployment_is_paused_and_resumed(
    fake: FakeDaemon, terminal: Terminal, verb: str, paused: bool, answer: Any
) -> None:
    fake.tell(f"/v1/deployment/pause/{DEPLOYMENT}", answer, method="POST")
    fake.tell(PATH, deployed("successful"))
    assert terminal.type("deployment", verb, "d1").exit_code == 0
    asked = fake.asked(f"/v1/deployment/pause/{DEPLOYMENT}")[0]
    assert asked.body == {"DeploymentID": DEPLOYMENT, "Pause": paused}


def test_deployments_and_allocations_of_a_job_are_listed(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/job/web/deployments", [deployed()])
    assert "d1d1d1d1" in terminal.type("job", "deployments", "web").stdout
    assert DEPLOYMENT in terminal.type("job", "deployments", "--latest", "web").stdout
    assert "6ff3f0a1" in terminal.type("job", "allocs", "--all", "web").stdout
    assert fake.asked("/v1/job/web/allocations")[0].query["all"] == "true"
