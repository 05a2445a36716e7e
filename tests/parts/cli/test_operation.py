"""Commands for operators, against a fake daemon: nodes, evaluations, garbage collection."""

from typing import Any

import pytest

from storage.records.evaluation import PlacementMetric
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told
from tests.parts.cli.test_commands import ALLOC, EVAL, NODE, evaluated, line, node, node_line

PATH = f"/v1/node/{NODE}"
CHANGED = {"EvalIDs": None, "EvalCreateIndex": 0, "NodeModifyIndex": 8, "Index": 8}
HOUR = 3600 * 10**9


@pytest.fixture(autouse=True)
def _known(fake: FakeDaemon) -> None:
    fake.tell("/v1/nodes", [node_line()])
    fake.tell("/v1/agent/self", {"stats": {"client": {"node_id": NODE}}})
    fake.tell(PATH, node())
    fake.tell(f"{PATH}/drain", CHANGED, method="POST")
    fake.tell(f"{PATH}/eligibility", CHANGED, method="POST")
    fake.tell("/v1/evaluations", [evaluated()])
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated())
    fake.tell(f"/v1/evaluation/{EVAL}/allocations", [line()])


def spec(deadline: int, **more: Any) -> Any:
    return {"DrainSpec": {"Deadline": deadline, "IgnoreSystemJobs": False, **more}}


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--enable", "--yes", "node-1"], spec(HOUR)),
        (["--enable", "--deadline", "90s", "0d6"], spec(90 * 10**9)),
        (["--enable", "--force", "--self"], spec(-1)),
        (
            ["--enable", "--no-deadline", "--ignore-system", "--self"],
            spec(0, IgnoreSystemJobs=True),
        ),
    ],
)
def test_node_is_drained_with_the_given_options(
    fake: FakeDaemon, terminal: Terminal, words: list[str], asked: Any
) -> None:
    result = terminal.type("node", "drain", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert fake.asked(f"{PATH}/drain")[0].body == {"MarkEligible": False, **asked}
    assert "is drained" in result.stdout


def test_a_drain_is_followed_until_the_node_is_empty(fake: FakeDaemon, terminal: Terminal) -> None:
    last = {"Status": "complete", "StartedAt": "", "UpdatedAt": "", "AccessorID": ""}
    fake.tell(PATH, node(), {**node(), "Drain": True}, {**node(), "LastDrain": last})
    shown = terminal.type("node", "drain", "--enable", "node-1").stdout.splitlines()
    assert shown[0].endswith("draining")
    assert shown[1].endswith("drain complete")


@pytest.mark.parametrize(("more", "eligible"), [([], True), (["--keep-ineligible"], False)])
def test_a_drain_is_stopped(
    fake: FakeDaemon, terminal: Terminal, more: list[str], eligible: bool
) -> None:
    result = terminal.type("node", "drain", "--disable", "--message", "back", *more, "node-1")
    assert result.exit_code == 0
    (asked,) = fake.asked(f"{PATH}/drain")
    assert asked.body == {"MarkEligible": eligible, "Meta": {"message": "back"}}


@pytest.mark.parametrize(
    ("words", "is_draining", "text"),
    [
        (["--enable", "--detach"], False, "node-1): drain started"),
        (["--enable", "--detach"], True, "node-1): drain changed"),
        (["--disable"], True, "node-1): drain cancelled"),
        (["--disable"], False, "node-1) was not draining, and is eligible for placements"),
        (["--disable", "--keep-ineligible"], False, "node-1) was not draining"),
    ],
)
def test_drain_reports_its_effect(
    fake: FakeDaemon, terminal: Terminal, words: list[str], is_draining: bool, text: str
) -> None:
    fake.tell(PATH, {**node(), "Drain": is_draining})
    shown = terminal.type("node", "drain", *words, "node-1").stdout
    assert shown.rstrip().endswith(text)


@pytest.mark.parametrize(("flag", "word"), [("--enable", "eligible"), ("--disable", "ineligible")])
def test_node_is_made_ineligible_and_eligible(
    fake: FakeDaemon, terminal: Terminal, flag: str, word: str
) -> None:
    result = terminal.type("node", "eligibility", flag, "--self")
    assert fake.asked(f"{PATH}/eligibility")[0].body == {"Eligibility": word}
    assert f" is {word} " in result.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["drain", "node-1"], "-enable or -disable"),
        (["drain", "--enable", "--disable", "node-1"], "exclude each other: pass only one"),
        (["eligibility", "--enable", "--disable", "node-1"], "exclude each other: pass only one"),
        (["drain", "--enable", "--keep-ineligible", "node-1"], "only goes with -disable"),
        (["drain", "--disable", "--deadline", "1h", "node-1"], "only go with -enable"),
        (["drain", "--disable", "--force", "node-1"], "only go with -enable"),
        (["drain", "--disable", "--ignore-system", "node-1"], "only go with -enable"),
        (["drain", "--enable"], "name a NODE"),
        (["drain", "--enable", "--self", "node-1"], "name a NODE"),
        (["drain", "--enable", "--force", "--deadline", "1h", "node-1"], "pass only one"),
        (["drain", "--enable", "--deadline", "soon", "node-1"], "'soon' is not a duration"),
        (["drain", "--enable", "--deadline", "0s", "node-1"], "'0s' is not a duration"),
        (["eligibility", "node-1"], "-enable or -disable"),
    ],
)
def test_unclear_node_argument_changes_nothing(
    fake: FakeDaemon, terminal: Terminal, words: list[str], why: str
) -> None:
    result = terminal.type("node", *words)
    assert result.exit_code == 1
    assert why in result.stderr
    assert not [seen for seen in fake.seen if seen.method != "GET"]


def test_evaluations_are_listed(fake: FakeDaemon, terminal: Terminal) -> None:
    shown = terminal.type("eval", "list", "--job", "web").stdout.splitlines()
    assert fake.asked("/v1/evaluations")[0].query["job"] == "web"
    assert shown[1].split() == [
        "e1e1e1e1",
        "50",
        "job-register",
        "web",
        "default",
        "complete",
        "false",
    ]


def test_evaluation_is_shown_with_placed_and_failed_allocations(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    failed = {"api": PlacementMetric(nodes_in_pool=0)}
    fake.tell("/v1/evaluations", [evaluated(failed_tg_allocs=failed)])
    shown = terminal.type("eval", "status", EVAL[:4]).stdout
    assert 'group "api": 1 allocation not placed' in shown
    assert "6ff3f0a1" in shown


def test_blocked_evaluation_is_explained_with_the_current_nodes(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    failed = {"api": PlacementMetric(nodes_in_pool=1, nodes_evaluated=1)}
    fake.tell("/v1/evaluations", [evaluated("blocked", failed_tg_allocs=failed)])
    fake.tell(f"/v1/evaluation/{EVAL}/allocations", [])
    reason = {"TaskGroup": "api", "Cause": "place", "Message": "not placed; vm has linux"}
    told = {"JobID": "web", "Namespace": "default", "Status": "pending", "Running": 0}
    fake.tell("/v1/job/web/explain", {**told, "Reasons": [reason]})
    assert 'group "api": not placed; vm has linux' in terminal.type("eval", "status", EVAL).stdout
    fake.tell("/v1/job/web/explain", Told(b"job not found", 404))
    assert "none of 1 node is suitable" in terminal.type("eval", "status", EVAL).stdout


def test_an_evaluation_names_the_root_cause_of_its_failed_allocations(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell("/v1/evaluations", [evaluated()])
    fake.tell(f"/v1/evaluation/{EVAL}/allocations", [line(client_status="failed")])
    error = {
        "AllocationID": ALLOC,
        "TaskGroup": "api",
        "Task": "main",
        "Time": 1,
        "Kind": "Terminated",
        "ExitCode": 3,
        "Stderr": "no disk left",
        "Summary": 'task "main" exited with code 3',
    }
    fake.tell(f"/v1/allocation/{ALLOC}/error", {"Error": error})
    shown = terminal.type("eval", "status", EVAL).stdout.splitlines()
    assert shown[-1] == "    no disk left"
    assert shown[-2].endswith('task "main" exited with code 3')


def test_evaluation_is_followed_until_its_decision(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated("pending"), evaluated())
    shown = terminal.type("eval", "status", "--monitor", EVAL[:4]).stdout.splitlines()
    assert [shown[0].split()[-1], shown[1].split()[-1]] == ["pending", "complete"]


@pytest.mark.parametrize(
    ("words", "path"),
    [(["gc"], "/v1/system/gc"), (["reconcile", "summaries"], "/v1/system/reconcile/summaries")],
)
def test_garbage_collection_is_requested(
    fake: FakeDaemon, terminal: Terminal, words: list[str], path: str
) -> None:
    fake.tell(path, Told(b""), method="PUT")
    assert terminal.type("system", *words).exit_code == 0
    assert len(fake.asked(path)) == 1
