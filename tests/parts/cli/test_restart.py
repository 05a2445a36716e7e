"""`job start`, `job restart`, `alloc checks`, `operator api` and `metrics`, against a fake daemon."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from daemon.admin.operator import operator
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told
from tests.parts.cli.test_commands import ALLOC, EVAL, REGISTERED, evaluated, line, stub, whole
from tests.samples import NOW

THIRD = "7aa3ffff-7d6e-4bd5-8a0b-0d6c34b4a1f2"
SECOND = "6ff3ffff-7d6e-4bd5-8a0b-0d6c34b4a1f2"
RESTART = "/v1/client/allocation/{}/restart"


@pytest.fixture(autouse=True)
def _known(fake: FakeDaemon) -> None:
    fake.tell("/v1/jobs", [stub()])
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated())
    fake.tell(f"/v1/evaluation/{EVAL}/allocations", [line()])
    running = [
        line(one, name=f"web.{group}[0]", task_group=group, client_status="running")
        for one, group in ((ALLOC, "web"), (SECOND, "web"), (THIRD, "side"))
    ]
    fake.tell("/v1/job/web/allocations", [*running, line(EVAL, client_status="complete")])
    for item in (ALLOC, SECOND, THIRD):
        fake.tell(RESTART.format(item), {"Index": 0}, method="PUT")
        fake.tell(f"/v1/allocation/{item}/stop", REGISTERED, method="POST")


# ---- job start ---------------------------------------------------------------------------------------


def test_stopped_job_is_registered_unchanged_with_its_source(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/job/web", {"ID": "web", "Stop": True, "Version": 3, "Priority": 70})
    fake.tell("/v1/job/web/submission", {"Source": "job ...", "Format": "hcl2"})
    result = terminal.type("job", "start", "web")
    assert (result.exit_code, result.stderr) == (0, "")
    (asked,) = [request for request in fake.seen if request.method == "POST"]
    assert asked.body == {
        "Job": {"ID": "web", "Stop": False, "Version": 3, "Priority": 70},
        "Submission": {"Source": "job ...", "Format": "hcl2"},
    }
    assert fake.asked("/v1/job/web/submission")[0].query["version"] == "3"


def test_job_without_a_source_is_started(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web", {"ID": "web", "Stop": True, "Version": 0})
    result = terminal.type("start", "--detach", "web")
    assert (result.exit_code, result.stdout) == (0, f'job "web": evaluation {EVAL}\n')


def test_a_job_that_is_not_stopped_is_not_started(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell("/v1/job/web", {"ID": "web", "Stop": False, "Version": 0})
    result = terminal.type("job", "start", "web")
    assert (result.exit_code, result.stderr) == (1, 'steward: job "web" is not stopped\n')


# ---- job restart -------------------------------------------------------------------------------------


def restarted(fake: FakeDaemon) -> list[tuple[str, Any]]:
    """Return, in order, each restarted allocation with the body of its request."""
    return [
        (request.path.split("/")[4], request.body)
        for request in fake.seen
        if request.path.endswith("/restart")
    ]


def all_of(*alloc_ids: str, **fields: Any) -> list[tuple[str, Any]]:
    return [(alloc_id, {"TaskName": "", "AllTasks": False, **fields}) for alloc_id in alloc_ids]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], all_of(THIRD, ALLOC, SECOND)),
        (["--group", "web"], all_of(ALLOC, SECOND)),
        (["--group", "side", "--task", "main"], all_of(THIRD, TaskName="main")),
        (["--group", "side", "--all-tasks"], all_of(THIRD, AllTasks=True)),
        (["--batch-size", "50%"], all_of(THIRD, ALLOC, SECOND)),
        (["--batch-size", "2", "--batch-wait", "1ms"], all_of(THIRD, ALLOC, SECOND)),
    ],
)
def test_running_allocations_of_a_job_restart(
    fake: FakeDaemon, terminal: Terminal, words: list[str], asked: Any
) -> None:
    result = terminal.type("job", "restart", *words, "web")
    assert (result.exit_code, result.stderr) == (0, "")
    assert restarted(fake) == asked
    number = len(asked)
    assert result.stdout.endswith(f'job "web": {number} of {number} allocations restarted\n')


def test_allocations_are_replaced_on_request(fake: FakeDaemon, terminal: Terminal) -> None:
    result = terminal.type("job", "restart", "--reschedule", "--group", "side", "web")
    assert (result.exit_code, restarted(fake)) == (0, [])
    assert len(fake.asked(f"/v1/allocation/{THIRD}/stop")) == 1
    assert len(fake.asked(f"/v1/evaluation/{EVAL}")) >= 1


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--on-error", "fail"], all_of(THIRD)),
        ([], all_of(THIRD)),
        (["--yes"], all_of(THIRD, ALLOC, SECOND)),
    ],
)
def test_restart_continues_after_a_failure_only_on_request(
    fake: FakeDaemon, terminal: Terminal, words: list[str], asked: Any
) -> None:
    fake.tell(RESTART.format(THIRD), Told(b"Task not running", 500), method="PUT")
    result = terminal.type("job", "restart", *words, "web")
    assert (result.exit_code, restarted(fake)) == (1, asked)
    assert "Task not running" in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--batch-size", "0"], "-batch-size '0' is neither a number above 0"),
        (["--batch-wait", "soon"], "-batch-wait 'soon' is neither a duration such as 10s"),
        (["--reschedule", "--task", "x"], "do not combine it with -task or -all-tasks"),
        (["--all-tasks", "--task", "x"], "pass only one"),
        (["--group", "none"], "no running allocation of group none"),
    ],
)
def test_an_invalid_restart_is_refused(
    terminal: Terminal, words: list[str], complaint: str
) -> None:
    result = terminal.type("job", "restart", *words, "web")
    assert result.exit_code == 1
    assert complaint in result.stderr


def test_job_without_running_allocations_is_not_restarted(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/job/web/allocations", [])
    result = terminal.type("job", "restart", "web")
    assert (result.exit_code, result.stderr) == (
        1,
        'steward: job "web" has no running allocation\n',
    )


# ---- alloc checks ------------------------------------------------------------------------------------


def test_checks_are_shown_with_their_results(fake: FakeDaemon, terminal: Terminal) -> None:
    found = {
        "ID": "c1",
        "Mode": "healthiness",
        "Status": "failure",
        "StatusCode": 503,
        "Output": "not yet",
        "Timestamp": NOW // 10**9,
        "Group": "web.web[0]",
        "Task": "",
        "Service": "web",
        "Check": "alive",
    }
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    fake.tell(f"/v1/client/allocation/{ALLOC}/checks", {"c1": found})
    result = terminal.type("alloc", "checks", ALLOC)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert shown[0] == "Status of 1 check"
    assert {"Name = alive", "Status = failure", "StatusCode = 503"} <= set(shown)
    assert json.loads(terminal.type("alloc", "checks", "--json", ALLOC).stdout) == {"c1": found}


def test_an_allocation_without_checks_has_none(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    fake.tell(f"/v1/client/allocation/{ALLOC}/checks", None)
    assert terminal.type("alloc", "checks", ALLOC).stdout == "Status of 0 checks\n"


# ---- operator api, operator metrics ------------------------------------------------------------------


def operate(fake: FakeDaemon, *words: str, stdin: str = "") -> Result:
    variables = {"STEWARD_ADDR": fake.address}
    return CliRunner(env=variables).invoke(operator, list(words), input=stdin)


def test_any_api_call_can_be_made(fake: FakeDaemon, tmp_path: Any) -> None:
    file = tmp_path / "body"
    file.write_text('{"b": 2}')
    fake.tell("/v1/x", {"found": True})
    for method in ("PUT", "DELETE"):
        fake.tell("/v1/x", Told(b"", 200), method=method)
    result = operate(fake, "api", "/v1/x?a=1", "--filter", "A == 1")
    assert (result.exit_code, result.stdout) == (0, '{"found": true}\n')
    operate(fake, "api", "v1/x", "-d", '{"a": 1}')
    operate(fake, "api", "/v1/x", "-d", f"@{file}")
    operate(fake, "api", "/v1/x", "-d", "-", stdin='{"c": 3}')
    operate(fake, "api", "-X", "delete", "/v1/x")
    assert [(item.method, item.query, item.body) for item in fake.asked("/v1/x")] == [
        ("GET", {"a": "1", "filter": "A == 1"}, None),
        ("PUT", {}, {"a": 1}),
        ("PUT", {}, {"b": 2}),
        ("PUT", {}, {"c": 3}),
        ("DELETE", {}, None),
    ]


def test_token_is_sent_only_to_the_daemon(fake: FakeDaemon) -> None:
    result = operate(fake, "api", "http://elsewhere.example/v1/x")
    assert result.exit_code == 1
    assert fake.seen == []


def test_metrics_are_printed_in_the_requested_format(fake: FakeDaemon) -> None:
    fake.tell("/v1/metrics", {"Gauges": []})
    assert operate(fake, "metrics").stdout == '{"Gauges": []}\n'
    operate(fake, "metrics", "--format", "prometheus")
    operate(fake, "metrics", "--pretty")
    assert [item.query for item in fake.asked("/v1/metrics")] == [
        {},
        {"format": "prometheus"},
        {"pretty": "true"},
    ]
