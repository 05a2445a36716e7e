"""Whole commands against a fake daemon: requests, output and exit statuses."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.text.option_syntax import normalize_options
from storage.records.allocation import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedPort,
    AllocatedResources,
    AllocatedShared,
    AllocatedTask,
)
from storage.records.allocation_views import AllocationView
from storage.records.base import SECOND
from storage.records.evaluation import EvalStatus, PlacementMetric
from storage.records.failure import TaskError
from storage.records.state import Run
from storage.records.task import Resources
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told
from tests.samples import NOW, evaluation, group, job, task
from tests.unit.cli.samples import allocation_line, task_state

ALLOC = "6ff3f0a1-7d6e-4bd5-8a0b-0d6c34b4a1f2"
OTHER = "6ff3ffff-7d6e-4bd5-8a0b-0d6c34b4a1f2"
EVAL = "e1e1e1e1-7d6e-4bd5-8a0b-0d6c34b4a1f2"
NODE = "0d6c34b4-7d6e-4bd5-8a0b-6ff3f0a16ff3"
REGISTERED = {"EvalID": EVAL, "JobModifyIndex": 5, "Warnings": ""}


def wire(value: object) -> Any:
    return json.loads(msgspec.json.encode(value))


def line(alloc_id: str = ALLOC, **fields: Any) -> Any:
    return wire(allocation_line(alloc_id, eval_id=EVAL, node_id=NODE, **fields))


def stub(job_id: str = "web", **fields: Any) -> Any:
    given = {"Type": "service", "Priority": 50, "Status": "running", "SubmitTime": NOW}
    return {"ID": job_id, "Namespace": "default", **given, **fields}


def status_line(job_id: str, **fields: Any) -> Any:
    """Return a job as `/v1/jobs/statuses` shows it."""
    given = {
        "Name": job_id,
        "Type": "service",
        "NodePool": "default",
        "Datacenters": ["*"],
        "Priority": 50,
        "Version": 0,
        "ParentID": "",
        "Status": "running",
        "Stop": False,
        "SubmitTime": NOW,
        "ModifyIndex": 7,
        "GroupCountSum": 1,
        "ChildStatuses": None,
        "Allocs": None,
        "LatestDeployment": None,
        "StewardState": {"State": "running"},
    }
    return {"ID": job_id, "Namespace": "default", **given, **fields}


def evaluated(status: str = EvalStatus.COMPLETE, **fields: Any) -> Any:
    return wire(evaluation(job(), EVAL, status=status, **fields))


def whole(**fields: Any) -> Any:
    """Return an allocation as `/v1/allocation/...` shows it."""
    allocated_task = AllocatedTask(
        cpu=AllocatedCPU(cpu_shares=20), memory=AllocatedMemory(memory_mb=30)
    )
    given = {
        "namespace": "default",
        "eval_id": EVAL,
        "name": "web.web[0]",
        "node_id": NODE,
        "node_name": "node-1",
        "job_id": "web",
        "job": msgspec.Raw(msgspec.json.encode(job())),
        "task_group": "web",
        "resources": Resources(),
        "shared_resources": Resources(),
        "task_resources": {},
        "allocated_resources": AllocatedResources(
            tasks={"main": allocated_task},
            task_lifecycles={"main": None},
            shared=AllocatedShared(
                disk_mb=10, ports=[AllocatedPort(label="http", value=20123, host_ip="10.0.0.1")]
            ),
        ),
        "metrics": PlacementMetric(),
        "desired_status": "run",
        "client_status": "running",
        "task_states": {
            "main": task_state(
                ("Received", "Task received by client"),
                ("Started", "Task started by client"),
                state="running",
                started_at="2026-11-21T01:40:00.5Z",
            )
        },
        "create_index": 10,
        "modify_index": 11,
        "alloc_modify_index": 10,
        "create_time": NOW,
        "modify_time": NOW,
        **fields,
    }
    return wire(AllocationView(id=ALLOC, **given))


def node(**fields: Any) -> Any:
    return {
        "ID": NODE,
        "Name": "node-1",
        "Datacenter": "dc1",
        "Attributes": {},
        "Meta": {"zone": "a"},
        "NodeResources": {
            "Cpu": {"CpuShares": 4000, "TotalCpuCores": 2, "ReservableCpuCores": [0, 1]},
            "Memory": {"MemoryMB": 2000},
            "Disk": {"DiskMB": 9000},
            "Networks": [],
        },
        "Drivers": {"raw_exec": {}},
        "Status": "ready",
        **fields,
    }


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "web job.json"
    path.write_text('{"Job": {"ID": "web"}}')
    return str(path)


# ---- job run ---------------------------------------------------------------------------------


def test_job_is_registered_and_followed_until_running(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated("pending"), evaluated())
    waiting = {"main": task_state(("Received", "Task received by client"), state="pending")}
    pending = line(client_status="pending", task_states=waiting)
    fake.tell("/v1/job/web/allocations", [pending], [line()])
    result = terminal.type("job", "run", job_file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "evaluation  e1e1e1e1  job-register  pending",
        "evaluation  e1e1e1e1  job-register  complete",
        "allocation  6ff3f0a1  web.web[0]  pending  Task received by client",
        "allocation  6ff3f0a1  web.web[0]  running",
        'job "web": allocations: 1 running',
    ]
    assert fake.asked("/v1/jobs")[0].body == {
        "Job": {"ID": "web"},
        "Submission": {"Source": '{"Job": {"ID": "web"}}', "Format": "json"},
    }
    second = fake.asked("/v1/job/web/allocations")[1].query
    assert second == {"namespace": "default", "index": "7", "wait": "60s"}


def test_a_batch_job_is_followed_to_its_end(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated(type="batch"))
    failed = {"main": task_state(("Terminated", "Exit Code: 3"), state="dead", failed=True)}
    ended = line(client_status="failed", task_states=failed)
    fake.tell("/v1/job/web/allocations", [line()], [ended])
    result = terminal.type("run", job_file)
    assert result.exit_code == 1
    assert result.stdout.endswith(
        'job "web": allocations: 1 failed\nallocation 6ff3f0a1 failed: task "main": Exit Code: 3\n'
    )


def test_a_job_that_cannot_be_placed_ends_with_2_and_the_reason(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    failed = {"web": PlacementMetric(node_pool="gpu")}
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated(failed_tg_allocs=failed, blocked_eval=OTHER))
    result = terminal.type("job", "run", job_file)
    assert result.exit_code == 2
    assert result.stdout.splitlines()[-2:] == [
        'job "web": group "web": 1 allocation not placed, because no eligible node '
        'is in pool "gpu" and in a datacenter of the job',
        "evaluation 6ff3ffff is blocked and places it when capacity is freed",
    ]


def test_an_evaluation_that_fails_ends_with_1(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated("failed", status_description="it broke"))
    result = terminal.type("job", "run", job_file)
    assert result.exit_code == 1
    assert result.stdout.endswith('job "web": evaluation e1e1e1e1 is failed: it broke\n')


def test_detached_run_prints_the_evaluation_and_exits(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", {**REGISTERED, "Warnings": "1 warning:\n\n* careful"}, method="POST")
    result = terminal.type("job", "run", "--detach", job_file)
    assert result.stdout == f"Job registration successful\nEvaluation ID: {EVAL}\n"
    assert result.stderr == "1 warning:\n\n* careful\n"
    assert len(fake.asked("/v1/jobs")) == 1


@pytest.mark.parametrize("verb", ["run", "plan", "validate"])
def test_infeasible_job_is_refused_before_its_registration(
    fake: FakeDaemon, terminal: Terminal, job_file: str, verb: str
) -> None:
    wrong = 'group "g", task "t": config has the unknown key "arg" (did you mean "args"?)'
    found = {"Errors": [wrong], "Warnings": []}
    fake.tell("/v1/validate/job", {"Error": "", "Warnings": ""}, method="POST")
    fake.tell("/v1/validate/job/examine", found, method="POST")
    result = terminal.type("job", verb, job_file)
    assert result.exit_code == {"run": 1, "plan": 255, "validate": 1}[verb]
    assert wrong in result.stderr
    assert fake.asked("/v1/jobs") == []


def test_failure_that_depends_on_the_current_state_is_a_warning(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    found = {"Errors": [], "Warnings": ["no node is in datacenter eu-1: the nodes are in dc1"]}
    fake.tell("/v1/validate/job/examine", found, method="POST")
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    result = terminal.type("job", "run", "--detach", job_file)
    assert result.exit_code == 0
    assert result.stderr == "Warning: no node is in datacenter eu-1: the nodes are in dc1\n"


def test_run_of_a_parent_job_does_not_wait(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", {**REGISTERED, "EvalID": ""}, method="POST")
    result = terminal.type("job", "run", job_file)
    assert result.exit_code == 0
    assert "It runs when it is dispatched, or on schedule." in result.stdout


def test_run_options_become_request_fields(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    numbers = ["--check-index", "7", "--eval-priority", "90"]
    flags = ["--preserve-counts", "--preserve-resources", "--policy-override"]
    options = [*numbers, *flags, "--detach"]
    terminal.type("job", "run", *options, "-", stdin='{"ID": "web"}')
    body = fake.asked("/v1/jobs")[0].body
    del body["Submission"]
    assert body == {
        "Job": {"ID": "web"},
        "EnforceIndex": True,
        "JobModifyIndex": 7,
        "EvalPriority": 90,
        "PreserveCounts": True,
        "PreserveResources": True,
        "PolicyOverride": True,
    }


def test_run_can_print_the_request_instead(fake: FakeDaemon, terminal: Terminal) -> None:
    source = '{"ID": "web"}'
    result = terminal.type("job", "run", "--output", "--check-index", "7", "-", stdin=source)
    assert result.stderr == ""
    printed = json.loads(result.stdout)
    assert (printed["Job"], printed["JobModifyIndex"]) == ({"ID": "web"}, 7)
    assert fake.seen == []


@pytest.mark.parametrize(
    ("source", "options", "variables", "namespace"),
    [
        ('{"ID": "web"}', [], {}, None),
        ('{"ID": "web"}', [], {"NOMAD_NAMESPACE": "env"}, "env"),
        ('{"ID": "web", "Namespace": "file"}', [], {"STEWARD_NAMESPACE": "env"}, None),
        ('{"ID": "web", "Namespace": "file"}', ["--namespace", "flag"], {}, "flag"),
    ],
)
def test_options_override_the_job_file_and_the_job_file_overrides_the_environment(
    fake: FakeDaemon,
    terminal: Terminal,
    source: str,
    options: list[str],
    variables: dict[str, str],
    namespace: str | None,
) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    terminal.type("job", "run", "--detach", *options, "-", stdin=source, **variables)
    assert fake.seen[0].query.get("namespace") == namespace


def test_a_run_as_json_is_one_document(fake: FakeDaemon, terminal: Terminal, job_file: str) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated())
    fake.tell("/v1/job/web/allocations", [line()])
    shown = json.loads(terminal.type("job", "run", "--json", job_file).stdout)
    assert shown["EvalID"] == EVAL
    assert shown["Evaluation"]["Status"] == "complete"
    assert [alloc["ClientStatus"] for alloc in shown["Allocations"]] == ["running"]


def test_missing_file_is_named(terminal: Terminal) -> None:
    result = terminal.type("job", "run", "/no/such.json")
    assert result.exit_code == 1
    assert result.stderr == (
        "steward: cannot read the job file /no/such.json: No such file or directory\n"
    )


def test_error_of_the_daemon_is_shown_unchanged(
    fake: FakeDaemon, terminal: Terminal, job_file: str
) -> None:
    fake.tell("/v1/jobs", Told(b"Job ID hasn't been provided", 400), method="POST")
    result = terminal.type("job", "run", job_file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "steward: Job ID hasn't been provided\n"


# ---- job status, inspect, history, stop ---------------------------------------------------------


def periodic_with(fake: FakeDaemon, state: str, *, paused: bool) -> None:
    fake.tell("/v1/jobs", [stub(Periodic=True)])
    fake.tell("/v1/job/web", wire(job()))
    fake.tell("/v1/job/web/state", {"State": state, "Runs": {"NextLaunch": 9 * SECOND}})
    fake.tell("/v1/job/web/runs", [])
    coming = [f"2026-11-2{day}T03:30:00+01:00" for day in range(1, 9)]
    fake.tell(
        "/v1/job/web/periodic",
        {"JobID": "web", "Namespace": "default", "Paused": paused, "NextLaunches": coming},
    )


def test_next_runs_of_a_periodic_job_are_in_its_time_zone(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    periodic_with(fake, "scheduled", paused=False)
    shown = terminal.type("job", "status", "web").stdout.splitlines()
    coming = [f"2026-11-2{day}T03:30:00+01:00" for day in range(1, 6)]
    assert shown[-1] == f"Next runs: {', '.join(coming)}"


def test_a_paused_job_has_no_next_run(fake: FakeDaemon, terminal: Terminal) -> None:
    periodic_with(fake, "paused", paused=True)
    shown = terminal.type("job", "status", "web").stdout.splitlines()
    assert shown[-1] == "Next runs: none, paused; resume with: steward job periodic resume web"
    runs = {"Kept": 1, "NextLaunch": 9 * SECOND}
    state = {"State": "paused", "Reason": "the last run failed", "Runs": runs}
    fake.tell("/v1/jobs/statuses", [status_line("web", StewardState=state)])
    assert "next run" not in terminal.type("status").stdout


def test_jobs_are_listed_in_columns(fake: FakeDaemon, terminal: Terminal) -> None:
    done = status_line("api", Type="batch", StewardState={"State": "complete"})
    ill = {"State": "degraded", "Reason": "1 of 2 running"}
    fake.tell("/v1/jobs/statuses", [done, status_line("web", StewardState=ill)])
    lines = terminal.type("job", "status").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ID", "web", "api"]  # running first
    assert re.fullmatch(r"web +service +degraded +\S+ ago +1 of 2 running", lines[1])
    assert re.fullmatch(r"api +batch +complete +\S+ ago", lines[2])


def test_runs_are_listed_only_on_request(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs/statuses", [])
    terminal.type("status")
    terminal.type("status", "--children")
    asked = [seen.query["include_children"] for seen in fake.asked("/v1/jobs/statuses")]
    assert asked == ["false", "true"]


def test_empty_job_list_is_reported(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs/statuses", [])
    result = terminal.type("status")
    assert (result.exit_code, result.stdout) == (0, "No jobs\n")


def test_jobs_of_all_namespaces_are_listed_with_their_namespace(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/jobs/statuses", [status_line("web")])
    header = terminal.type("job", "status", "--namespace", "*").stdout.split("\n")[0]
    assert header.split() == ["ID", "Namespace", "Type", "Status", "Submitted", "Details"]


def test_a_job_is_shown_with_counts_reasons_and_allocations(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/jobs", [stub(JobSummary={"Summary": {"web": {"Running": 1, "Queued": 2}}})])
    fake.tell("/v1/job/web", wire(job("web", group("web"))))
    failed = {"web": PlacementMetric(node_pool="gpu")}
    blocked = evaluated(EvalStatus.BLOCKED, failed_tg_allocs=failed, create_index=9)
    fake.tell("/v1/job/web/evaluations", [blocked, evaluated()])
    fake.tell("/v1/job/web/allocations", [line()])
    lines = terminal.type("job", "status", "we").stdout.splitlines()
    assert "ID            = web" in lines
    assert "Status        = running" in lines
    after_summary = lines[lines.index("Summary") :]
    assert [line.split() for line in after_summary[1:3]] == [
        ["Task", "Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown"],
        ["web", "2", "0", "1", "0", "0", "0", "0"],
    ]
    assert lines[lines.index("Placement") + 1].startswith('group "web": 1 allocation not placed')
    allocation = lines[lines.index("Allocations") + 2]
    assert allocation.split()[:6] == ["6ff3f0a1", "0d6c34b4", "web", "0", "run", "running"]


def test_parent_job_is_shown_with_its_children(fake: FakeDaemon, terminal: Terminal) -> None:
    children = {"Children": {"Pending": 0, "Running": 1, "Dead": 2}}
    parent = stub(ParameterizedJob=True, JobSummary=children)
    fake.tell("/v1/jobs", [parent])
    fake.tell("/v1/job/web", wire(job()))
    counts = {"Recent": ["failed", "complete"], "Kept": 2, "NextLaunch": 0}
    reason = 'the last run failed: task "t" exited with code 3'
    state = {"State": "failing", "Reason": reason, "Runs": counts}
    fake.tell("/v1/job/web/state", state)
    error = TaskError(
        allocation_id="a",
        task_group="web",
        task="t",
        time=1_795_225_200 * SECOND,
        kind="Terminated",
        exit_code=3,
        stderr="one\ntwo\n",
        summary='task "t" exited with code 3',
    )
    run = Run(
        id="web/dispatch-1",
        namespace="default",
        result="failed",
        exit_code=3,
        started=1_795_225_200 * SECOND,
        ended=1_795_225_262 * SECOND,
        duration=62 * SECOND,
        error=error,
    )
    fake.tell("/v1/job/web/runs", [wire(run)])
    lines = terminal.type("job", "status", "web").stdout.splitlines()
    assert lines[lines.index("Children Job Summary") + 2].split() == ["0", "1", "2"]
    assert "Status        = failing" in lines
    assert f"Reason        = {reason}" in lines
    at = lines.index("Runs")
    assert re.fullmatch(r"web/dispatch-1 +failed +3 +\S+ ago +1m2s", lines[at + 2])
    assert lines[at + 3 :] == [
        "1 of the last 2 failed; 2 kept",
        "",
        "Last Error",
        '2026-11-21T01:40:00Z  task "t" exited with code 3',
        "    one",
        "    two",
    ]


@pytest.mark.parametrize("verb", ["status", "inspect", "history", "stop"])
def test_missing_job_is_named(fake: FakeDaemon, terminal: Terminal, verb: str) -> None:
    fake.tell("/v1/jobs", [])
    result = terminal.type("job", verb, "wbe")
    assert result.exit_code == 1
    assert result.stderr == (
        "steward: there is no job 'wbe'; list them with \"steward job status\"\n"
    )


def test_job_is_found_without_listing_its_children(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub("web")])
    fake.tell("/v1/job/web/allocations", [])
    assert terminal.type("job", "allocs", "web").exit_code == 0
    (asked,) = fake.asked("/v1/jobs")
    assert asked.query == {"prefix": "web", "filter": 'ID == "web"'}


def test_a_job_with_a_quote_in_its_name_is_searched_by_its_prefix(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    name = 'w"eb'
    fake.tell("/v1/jobs", [stub(name)])
    fake.tell(f"/v1/job/{name}/allocations", [])
    assert terminal.type("job", "allocs", name).exit_code == 0
    assert [item.query for item in fake.asked("/v1/jobs")] == [{"prefix": name}]


def test_mistyped_job_name_gets_a_suggestion(fake: FakeDaemon, terminal: Terminal) -> None:
    # The answers to three requests: for the ID, for jobs with this prefix, and for all jobs.
    fake.tell("/v1/jobs", [], [], [stub("mail"), stub("web")])
    result = terminal.type("job", "status", "wbe")
    assert result.exit_code == 1
    assert result.stderr == "steward: there is no job 'wbe'; did you mean 'web'?\n"


def test_ambiguous_job_prefix_lists_the_jobs(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub("web-1"), stub("web-2")])
    result = terminal.type("job", "inspect", "web")
    assert result.exit_code == 1
    assert result.stderr == (
        "steward: 'web' is a prefix of 2 jobs; pass more of it:\n  web-1 (default)\n  web-2 (default)\n"
    )


def test_whole_name_matches_before_longer_names(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub("web"), stub("web-2")])
    fake.tell("/v1/job/web", {"ID": "web", "Meta": None})
    result = terminal.type("job", "inspect", "web")
    assert json.loads(result.stdout) == {"Job": {"ID": "web", "Meta": None}}


def test_an_older_version_is_inspected_by_its_number(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub()])
    fake.tell("/v1/job/web/versions", {"Versions": [{"ID": "web", "Version": 1}, {"ID": "web"}]})
    assert terminal.type("inspect", "web", "--version", "1", "-t", ".Job.Version").stdout == "1\n"
    wrong = terminal.type("inspect", "web", "--version", "5")
    assert wrong.stderr == 'steward: job "web" has no version 5, only: 0, 1\n'


def test_a_job_is_inspected_as_a_job_file(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub()])
    said = {"Source": 'job "web" {\n}\n', "Format": "hcl2", "Version": 2}
    fake.tell("/v1/job/web/definition", said)
    assert terminal.type("job", "inspect", "--hcl", "web").stdout == said["Source"]


def test_job_beyond_the_job_file_syntax_is_not_inspected_as_a_job_file(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/jobs", [stub()])
    fake.tell("/v1/job/web/definition", {"Source": "{}", "Format": "json", "Version": 2})
    result = terminal.type("job", "inspect", "--hcl", "web")
    assert result.exit_code == 1
    assert 'version 2 of job "web" cannot be written as HCL' in result.stderr


def test_the_history_lists_versions_newest_first(fake: FakeDaemon, terminal: Terminal) -> None:
    newest = {"ID": "web", "Version": 1, "Stop": True, "SubmitTime": NOW}
    oldest = {"ID": "web", "Stable": True, "SubmitTime": NOW, "VersionTag": {"Name": "gold"}}
    fake.tell("/v1/jobs", [stub()])
    fake.tell("/v1/job/web/versions", {"Versions": [newest, oldest]})
    assert terminal.type("job", "history", "web").stdout.splitlines() == [
        "Version  Stable  Stopped  Tag   Submit Date",
        "1        false   true           2026-11-21T01:40:00Z",
        "0        true    false    gold  2026-11-21T01:40:00Z",
    ]
    as_json = json.loads(terminal.type("job", "history", "--json", "web").stdout)
    assert as_json == [newest, oldest]


def test_stop_waits_until_all_allocations_have_ended(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub()])
    fake.tell("/v1/job/web", {"EvalID": EVAL}, method="DELETE")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated(create_index=10))
    stopping = line(desired_status="stop")
    stopped = line(desired_status="stop", client_status="complete")
    older = line(OTHER, client_status="failed", modify_index=3)
    fake.tell("/v1/job/web/allocations", [stopping, older], [stopped, older])
    result = terminal.type("stop", "--purge", "--eval-priority", "70", "web")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == [
        "allocation  6ff3f0a1  web.web[0]  running  stopping",
        "allocation  6ff3f0a1  web.web[0]  complete",
        'job "web" is stopped: 1 allocation ended',
    ]
    sent = fake.asked("/v1/job/web")[0].query
    assert sent == {"namespace": "default", "purge": "true", "eval_priority": "70"}


def test_stop_by_a_prefix_needs_confirmation(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/jobs", [stub("web-server")])
    fake.tell("/v1/job/web-server", {"EvalID": EVAL}, method="DELETE")
    refused = terminal.type("job", "stop", "--detach", "web")
    assert refused.exit_code == 1
    assert (
        refused.stderr
        == "steward: 'web' is a prefix of job 'web-server': pass the full name, or -yes\n"
    )
    accepted = terminal.type("job", "stop", "--detach", "-y", "web")
    assert accepted.stdout == f'job "web-server" is stopped; evaluation {EVAL}\n'


# ---- allocations, logs, nodes -------------------------------------------------------------------


def test_allocation_is_shown_with_its_tasks_and_unenforced_limits(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/allocations", [line(), line("7" + OTHER[1:])])
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    limits = {
        "driver.raw_exec.unenforced.memory": "no cgroup can be had",
        "driver.raw_exec.enforced.cpu": "cgroup v1 (cpu)",
    }
    fake.tell(f"/v1/node/{NODE}", node(Attributes=limits))
    result = terminal.type("alloc", "status", "6ff3f")
    lines = result.stdout.splitlines()
    assert fake.seen[0].query["prefix"] == "6ff3"  # the daemon wants an even length
    assert f"ID                  = {ALLOC}" in lines
    assert "Client Status       = running" in lines
    assert lines[lines.index("Allocation Addresses") + 2] == "http   10.0.0.1:20123"
    task_lines = lines[lines.index('Task "main" is "running"') + 1 :]
    assert task_lines[:6] == [
        "CPU     Memory  Disk",
        "20 MHz  30 MiB  10 MiB",
        "Started At     = 2026-11-21T01:40:00Z",
        "Finished At    = N/A",
        "Total Restarts = 0",
        "Last Restart   = N/A",
    ]
    assert task_lines[7:10] == [
        "Time                  Type      Description",
        "2026-11-21T01:40:00Z  Started   Task started by client",
        "2026-11-21T01:40:00Z  Received  Task received by client",
    ]
    assert lines[-2:] == ["Not Enforced Here", "memory: no cgroup can be had"]
    assert lines[-5:-2] == ["Enforced Here", "cpu: cgroup v1 (cpu)", ""]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("abc", "no allocation begins with 'abc'; list them with \"steward alloc status\""),
        ("6FF3", "'6ff3' is a prefix of 2 allocations; pass more of it:\n  6ff3f0a1"),
        ("web", "'web' is not a prefix of an ID"),
    ],
)
def test_ambiguous_allocation_is_reported(
    fake: FakeDaemon, terminal: Terminal, given: str, complaint: str
) -> None:
    fake.tell("/v1/allocations", [line(), line(OTHER)])
    result = terminal.type("alloc", "status", given)
    assert result.exit_code == 1
    assert complaint in result.stderr


def test_allocations_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/allocations", [line()])
    assert "6ff3f0a1" in terminal.type("alloc", "status").stdout
    shown = json.loads(terminal.type("alloc", "status", "--json").stdout)
    assert shown[0]["ID"] == ALLOC


LOGS = f"/v1/client/fs/logs/{ALLOC}"


@pytest.fixture
def logging(fake: FakeDaemon) -> FakeDaemon:
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    return fake


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ([], {"type": "stdout", "follow": "false", "origin": "start", "offset": "0"}),
        (["--stderr"], {"type": "stderr", "follow": "false", "origin": "start", "offset": "0"}),
        (["-f"], {"type": "stdout", "follow": "true", "origin": "start", "offset": "0"}),
        (["-c", "5"], {"type": "stdout", "follow": "false", "origin": "end", "offset": "5"}),
    ],
)
def test_log_is_printed_on_arrival(
    logging: FakeDaemon, terminal: Terminal, options: list[str], query: dict[str, str]
) -> None:
    logging.tell(LOGS, Told(pieces=(b"one\n", b"\xfftwo\n")))
    result = terminal.type("alloc", "logs", *options, ALLOC)
    assert result.stdout_bytes == b"one\n\xfftwo\n"
    (asked,) = logging.asked(LOGS)
    assert asked.query == {"task": "main", "plain": "true", **query}


def test_tail_has_the_requested_number_of_lines(logging: FakeDaemon, terminal: Terminal) -> None:
    logging.tell(LOGS, Told(b"".join(b"%d\n" % number for number in range(100))))
    assert terminal.type("logs", "-n", "2", ALLOC).stdout == "98\n99\n"
    assert terminal.type("logs", "--tail", ALLOC).stdout.split() == [str(n) for n in range(90, 100)]


def test_tail_of_long_lines_reads_until_complete(logging: FakeDaemon, terminal: Terminal) -> None:
    long = b"x" * 70_000 + b"\n"
    logging.tell(LOGS, Told(long[-65536:]), Told(long * 3))
    assert terminal.type("logs", "-n", "1", ALLOC).stdout_bytes == long
    assert [seen.query["offset"] for seen in logging.asked(LOGS)] == ["65536", "262144"]


def test_tail_is_followed_without_a_gap(logging: FakeDaemon, terminal: Terminal) -> None:
    past, tip = {"Data": "YQpiCmMK", "File": "x.0", "Offset": 6}, Told(b"a\nb\nc\n")
    new = {"Data": "ZAo=", "File": "x.1", "Offset": 2}
    last_byte = {"Data": "Cg==", "File": "x.0", "Offset": 6}
    stream = json.dumps(past).encode() + json.dumps(new).encode()
    logging.tell(LOGS, tip, last_byte, Told(pieces=(stream,)))
    assert terminal.type("logs", "-f", "-n", "2", ALLOC).stdout == "b\nc\nd\n"


def test_the_log_of_a_job_is_that_of_its_newest_running_allocation(
    logging: FakeDaemon, terminal: Terminal
) -> None:
    logging.tell("/v1/jobs", [stub()])
    failed = line(OTHER, client_status="failed", create_index=99)
    logging.tell("/v1/job/web/allocations", [line(), failed])
    logging.tell(LOGS, Told(pieces=(b"hello\n",)))
    assert terminal.type("logs", "--job", "web").stdout == "hello\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([ALLOC, "side"], "allocation 6ff3f0a1 has the tasks main, but no task 'side'"),
        (["--job", "web"], 'job "web" has no allocations; see why with'),
    ],
)
def test_missing_log_is_reported_with_available_logs(
    logging: FakeDaemon, terminal: Terminal, words: list[str], complaint: str
) -> None:
    logging.tell("/v1/jobs", [stub()])
    logging.tell("/v1/job/web/allocations", [])
    result = terminal.type("alloc", "logs", *words)
    assert result.exit_code == 1
    assert complaint in result.stderr


def test_task_name_is_required_if_there_are_several(fake: FakeDaemon, terminal: Terminal) -> None:
    several = whole()
    tasks = several["AllocatedResources"]["Tasks"]
    tasks["side"] = tasks["main"]
    fake.tell(f"/v1/allocation/{ALLOC}", several)
    fake.tell(LOGS, Told(pieces=(b"hello\n",)))
    asked = terminal.type("logs", ALLOC)
    assert asked.stderr == (
        "steward: allocation 6ff3f0a1 has the tasks main, side: add the name of one of them after the allocation\n"
    )
    assert terminal.type("logs", ALLOC, "side").stdout == "hello\n"


def node_line(node_id: str = NODE, name: str = "node-1") -> dict[str, object]:
    return {
        "ID": node_id,
        "Name": name,
        "Datacenter": "dc1",
        "NodePool": "default",
        "SchedulingEligibility": "eligible",
        "Status": "ready",
    }


def test_nodes_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/nodes", [node_line()])
    assert terminal.type("node", "status").stdout.splitlines() == [
        "ID        Node Pool  DC   Name    Class   Drain  Eligibility  Status",
        "0d6c34b4  default    dc1  node-1  <none>  false  eligible     ready",
    ]


@pytest.mark.parametrize("words", [["0d6"], ["node-1"], ["--self"]])
def test_node_is_shown_with_used_resources(
    fake: FakeDaemon, terminal: Terminal, words: list[str]
) -> None:
    fake.tell("/v1/nodes", [node_line(), node_line(OTHER, "node-2")])
    fake.tell("/v1/agent/self", {"stats": {"client": {"node_id": NODE}}})
    fake.tell(f"/v1/node/{NODE}", node())
    fake.tell(f"/v1/node/{NODE}/allocations", [whole(), whole(client_status="complete")])
    lines = terminal.type("node", "status", *words).stdout.splitlines()
    assert "Status             = ready" in lines
    assert lines[lines.index("Driver Status") + 2] == "raw_exec  true      true     Healthy"
    used = lines[lines.index("Allocated Resources") + 2]
    assert used.split("  ") == ["20/4000 MHz", "30/2000 MiB", "10/9000 MiB"]
    assert lines[lines.index("Meta") + 1 :] == ["zone = a"]


def test_node_reports_unenforced_limits_once(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/nodes", [node_line()])
    limits = {
        "driver.raw_exec.unenforced.memory": "no cgroup can be had",
        "driver.raw_exec.unenforced.cpu": "no cgroup can be had",
        "driver.exec.unenforced.cpu": "the driver is not there",
    }
    fake.tell(f"/v1/node/{NODE}", node(Attributes=limits))
    fake.tell(f"/v1/node/{NODE}/allocations", [])
    shown = terminal.type("node", "status", "0d6").stdout
    assert shown.count("Not enforced here: raw_exec: cpu, memory\n") == 1
    assert "exec: cpu;" not in shown


def test_the_networks_of_a_node_are_shown_with_their_addresses(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    lan = {
        "Name": "lan",
        "CIDR": "10.0.0.0/8",
        "Interface": "",
        "ReservedPorts": "",
        "IP": "10.1.2.3",
    }
    fake.tell("/v1/nodes", [node_line()])
    fake.tell(f"/v1/node/{NODE}", node(HostNetworks={"lan": lan}))
    fake.tell(f"/v1/node/{NODE}/allocations", [])
    lines = terminal.type("node", "status", "node-1").stdout.splitlines()
    assert lines[lines.index("Host Networks") + 2].split() == [
        *("lan", "10.1.2.3", "10.0.0.0/8", "<none>", "<none>"),
    ]


def pool_line(**engine: object) -> dict[str, object]:
    hosts = [
        {"Name": "a", "State": "up", "Description": "takes jobs", "Cores": 8, "MemoryMB": 1000},
        {
            "Name": "b",
            "State": "down",
            "Reason": "Not responding",
            "Description": "is down: Not responding",
            "Cores": 2,
            "MemoryMB": 4000,
            "Features": ["big", "gpu"],
        },
    ]
    said = {"Name": "slurm", "Partition": "main", "Version": "22.05.8", "Reachable": True}
    said |= {"Hosts": hosts, "Running": 3, "Waiting": 4, **engine}
    return {**node_line(OTHER, "hpc"), "NodePool": "hpc", "Engine": said}


def test_pools_are_listed_with_running_and_queued_tasks(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    away = {"Status": "disconnected", "StatusDescription": "the cluster does not answer: no"}
    fake.tell("/v1/nodes", [node_line(), {**pool_line(), **away}])
    done = terminal.type("pool", "status")
    header, machine, cluster = (re.split(r" {2,}", line) for line in done.stdout.splitlines())
    assert header == [
        *("Pool", "Node", "Engine", "Partition", "Hosts Up", "Running", "Waiting", "Status"),
    ]
    assert machine == ["default", "node-1", *["<none>"] * 5, "ready"]
    assert cluster == ["hpc", "hpc", "slurm", "main", "1/2", "3", "4", "disconnected"]
    assert done.stderr == "hpc: the cluster does not answer: no\n"


def test_a_pool_of_a_cluster_is_shown_with_its_hosts(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/node/pool/hpc/nodes", [pool_line()])
    lines = terminal.type("pool", "status", "hpc").stdout.splitlines()
    assert "Engine             = slurm 22.05.8" in lines
    assert "Reachable          = true" in lines
    assert "Waiting            = 4" in lines
    table = [re.split(r" {2,}", line) for line in lines[lines.index("Hosts") + 2 :]]
    assert table == [
        ["a", "8", "1000 MiB", "<none>", "up", "takes jobs"],
        ["b", "2", "4000 MiB", "big,gpu", "down", "is down: Not responding"],
    ]


def test_running_tasks_of_a_cluster_are_listed_by_host(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    line = pool_line()
    fake.tell("/v1/node/pool/hpc/nodes", [line])
    tasks = [
        {"Host": "b", "AllocationID": "0b" * 16, "Task": "main"},
        {"Host": "a", "AllocationID": "0c" * 16, "Task": "main"},
    ]
    fake.tell(f"/v1/node/{line['ID']}/hosts", tasks)
    done = terminal.type("pool", "status", "--tasks", "hpc")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    table = [re.split(r" {2,}", row) for row in lines[lines.index("Tasks by Host") + 1 :]]
    assert table == [
        ["Host", "Allocation", "Task"],
        ["a", "0c0c0c0c", "main"],
        ["b", "0b0b0b0b", "main"],
    ]
    nameless = terminal.type("pool", "status", "--tasks")
    assert nameless.exit_code == 1
    assert "name the pool, such as hpc" in nameless.stderr


# ---- common behavior of all commands -------------------------------------------------------------


def test_nomad_variables_are_read_without_steward_variables(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/jobs", [])
    older = {"NOMAD_ADDR": fake.address, "NOMAD_TOKEN": "old"}
    terminal.type("status", **older, STEWARD_ADDR="")
    terminal.type("status", **older, STEWARD_TOKEN="new")
    terminal.type("status", "--token", "flag", **older, STEWARD_TOKEN="new")
    tokens = [seen.headers["x-service-token"] for seen in fake.seen]
    assert tokens == ["old", "new", "flag"]


def test_vault_variables_apply_only_to_the_vault_api(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/auth/token/lookup-self", {"data": {"id": "one"}})
    fake.tell("/v1/jobs", [])
    theirs = {"VAULT_ADDR": fake.address, "VAULT_TOKEN": "vault", "BAO_TOKEN": "bao"}
    terminal.type("read", "auth/token/lookup-self", **theirs, STEWARD_ADDR="")
    terminal.type("read", "auth/token/lookup-self", **theirs, STEWARD_TOKEN="ours")
    terminal.type("status", **theirs)
    assert [seen.headers.get("x-service-token") for seen in fake.seen] == ["vault", "ours", None]


@pytest.mark.parametrize(
    ("words", "method", "path"),
    [
        ("system gc", "PUT", "/v1/system/gc"),
        ("namespace delete shop", "DELETE", "/v1/namespace/shop"),
        ("var purge a/b", "DELETE", "/v1/var/a/b"),
        ("acl policy delete p", "DELETE", "/v1/acl/policy/p"),
        ("policy delete p", "DELETE", "/v1/sys/policies/acl/p"),
        ("auth disable azure", "DELETE", "/v1/sys/auth/azure"),
        ("delete auth/azure/role/web", "DELETE", "/v1/auth/azure/role/web"),
        ("write -force auth/azure/rotate-root", "POST", "/v1/auth/azure/rotate-root"),
        ("token revoke -self", "POST", "/v1/auth/token/revoke-self"),
    ],
)
def test_completed_change_is_reported_as_text_or_document(
    fake: FakeDaemon, terminal: Terminal, words: str, method: str, path: str
) -> None:
    fake.tell(path, Told(b""), method=method)
    typed = normalize_options(words.split())
    told = terminal.type(*typed)
    assert (told.exit_code, told.stderr) == (0, "")
    shown = terminal.type(*typed, "--json")
    assert json.loads(shown.stdout) == {"Message": told.stdout.strip()}
    assert terminal.type(*typed, "-t", ".Message").stdout == told.stdout


@pytest.mark.parametrize("noun", ["job", "node", "alloc"])
def test_document_is_printed_whole_or_in_part(
    fake: FakeDaemon, terminal: Terminal, noun: str
) -> None:
    fake.tell("/v1/jobs", jobs := [{**stub("a"), "More": "ä"}, {**stub("b"), "More": None}])
    fake.tell("/v1/nodes", nodes := [{**node_line(), "More": "ä"}, {**node_line(), "More": None}])
    fake.tell("/v1/allocations", allocs := [{**line(), "More": "ä"}, {**line(), "More": None}])
    whole = terminal.type(noun, "status", "--json").stdout
    assert json.loads(whole) == {"job": jobs, "node": nodes, "alloc": allocs}[noun]
    assert whole.startswith('[\n    {\n        "ID": "')
    assert terminal.type(noun, "status", "-t", ".[].More").stdout == "ä\nnull\n"


def test_a_task_in_a_group_is_found_by_the_job_of_the_allocation(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    other = job("web", group("web", task(driver="mock")))
    fake.tell(f"/v1/allocation/{ALLOC}", whole(job=msgspec.Raw(msgspec.json.encode(other))))
    limits = {"driver.raw_exec.unenforced.memory": "no cgroup can be had"}
    fake.tell(f"/v1/node/{NODE}", node(Attributes=limits))
    assert "Not Enforced Here" not in terminal.type("alloc", "status", ALLOC).stdout
