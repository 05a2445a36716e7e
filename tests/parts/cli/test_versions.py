"""`job plan`, `job history -p`, `job revert` and `job tag` against a fake daemon."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.jobspec.diff import diff_jobs
from storage.records.evaluation import DesiredUpdates
from storage.records.job import VersionTag
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told
from tests.parts.cli.test_commands import EVAL, REGISTERED, evaluated, line, stub, wire
from tests.samples import job

PLAN = "/v1/job/web/plan"
NOTHING = DesiredUpdates(ignore=2, in_place_update=1)
DIFF = diff_jobs(job("web"), job("web", priority=70))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "web.json"
    path.write_text(json.dumps({"Job": {"id": "web", "Namespace": "ops"}}))
    return str(path)


def planned(updates: DesiredUpdates = NOTHING, **fields: Any) -> Any:
    given = {"JobModifyIndex": 7, "Diff": wire(DIFF), "Warnings": "", "FailedTGAllocs": None}
    return {"Annotations": {"DesiredTGUpdates": {"web": wire(updates)}}, **given, **fields}


# ---- plan -------------------------------------------------------------------------------------------


def test_plan_shows_changes_and_the_next_command(
    fake: FakeDaemon, terminal: Terminal, file: str
) -> None:
    fake.tell(PLAN, planned(), method="POST")
    ended = terminal.type("plan", file)
    assert (ended.exit_code, ended.output.splitlines()) == (
        0,
        [
            '~ job "web"',
            '  ~ Priority: "50" => "70"',
            "",
            "All allocations can be placed.",
            "Job modify index: 7",
        ],
    )
    (asked,) = fake.asked(PLAN)
    assert asked.body["Job"] == {"id": "web", "Namespace": "ops"}
    assert (asked.body["Diff"], asked.query) == (True, {"launches": "true", "limits": "true"})


def test_plan_shows_enforced_and_unenforced_limits(
    fake: FakeDaemon, terminal: Terminal, file: str
) -> None:
    limits = [
        {"Name": "cores", "Enforced": False, "How": "no such group"},
        {"Name": "memory", "Enforced": True, "How": "cgroup v2 (memory)"},
    ]
    fake.tell(PLAN, planned(Limits={"exec": limits, "raw_exec": limits[:1]}), method="POST")
    short = terminal.type("plan", file).output.splitlines()
    assert "Not enforced here: exec: cores; raw_exec: cores" in short
    assert "Enforced Here" not in short
    lines = terminal.type("plan", "--verbose", file).output.splitlines()
    at = lines.index("Enforced Here")
    assert lines[at + 1 : at + 5] == [
        "memory: cgroup v2 (memory)",
        "",
        "Not Enforced Here",
        "cores: no such group",
    ]


@pytest.mark.parametrize(
    "updates",
    [{"place": 1}, {"stop": 1}, {"migrate": 1}, {"destructive_update": 1}, {"canary": 1}],
)
def test_plan_that_creates_or_stops_allocations_exits_with_one(
    fake: FakeDaemon, terminal: Terminal, file: str, updates: dict[str, int]
) -> None:
    fake.tell(PLAN, planned(DesiredUpdates(**updates)), method="POST")
    assert terminal.type("job", "plan", file).exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["FILE"], "no such thing"),
        (["/no/such/file"], "cannot read the job file"),
        ([], "Missing argument 'FILE'"),
        (["FILE", "--nope"], "No such option"),
    ],
)
def test_failed_plan_exits_with_255_and_a_reason(
    terminal: Terminal, file: str, words: list[str], said: str
) -> None:
    ended = terminal.type("job", "plan", *(word.replace("FILE", file) for word in words))
    assert (ended.exit_code, said in ended.stderr) == (255, True)


def test_plan_names_the_allocations_to_preempt(
    fake: FakeDaemon, terminal: Terminal, file: str
) -> None:
    answer = planned(DesiredUpdates(place=1, preemptions=1))
    answer["Annotations"]["PreemptedAllocs"] = [{"ID": "12345678-9", "JobID": "low", "Name": "x"}]
    fake.tell(PLAN, answer, method="POST")
    told = terminal.type("plan", "--no-diff", file).output
    assert 'Allocation 12345678 of job "low" would be preempted.' in told


def test_plan_shows_unplaced_groups_and_the_next_launch(
    fake: FakeDaemon, terminal: Terminal, file: str
) -> None:
    full = {"web": {"NodesInPool": 1, "NodesEvaluated": 1, "DimensionExhausted": {"memory": 1}}}
    answer = planned(FailedTGAllocs=full, NextPeriodicLaunches=["2027-01-01T00:00:00Z"], Diff=None)
    fake.tell(PLAN, answer, method="POST")
    assert terminal.type("plan", "--no-diff", file).output.splitlines() == [
        'group "web": 1 allocation not placed, because the only node has too little memory left',
        "Next launches: 2027-01-01T00:00:00Z",
        "Job modify index: 7",
    ]


def test_a_plan_is_colored_on_a_terminal(fake: FakeDaemon, terminal: Terminal, file: str) -> None:
    fake.tell(PLAN, planned(), method="POST")
    assert (
        '\x1b[33m  ~ Priority: "50" => "70"\x1b[0m' in terminal.type("plan", "--color", file).output
    )


def test_plan_without_an_id_is_refused_before_any_request(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    ended = terminal.type("plan", "-", stdin='{"Job": {}}')
    assert (ended.exit_code, ended.stderr) == (255, 'steward: -: the job has no "ID"\n')
    assert fake.seen == []


# ---- versions ---------------------------------------------------------------------------------------


@pytest.fixture
def two_versions(fake: FakeDaemon) -> FakeDaemon:
    fake.tell("/v1/jobs", [stub()])
    tag = VersionTag(name="good")
    versions = [wire(job(version=1, priority=70)), wire(job(version=0, version_tag=tag))]
    fake.tell("/v1/job/web/versions", {"Versions": versions, "Diffs": [wire(DIFF)]})
    return fake


def test_history_shows_the_changes_of_each_version(
    two_versions: FakeDaemon, terminal: Terminal
) -> None:
    printed = terminal.type("job", "history", "-p", "web").output
    assert '  ~ Priority: "50" => "70"' in printed
    assert printed.index("Version     = 1") < printed.index("Priority") < printed.index("= 0")
    (asked,) = two_versions.asked("/v1/job/web/versions")
    assert asked.query == {"diffs": "true", "namespace": "default"}


def test_a_history_compares_with_a_version_or_a_name(
    two_versions: FakeDaemon, terminal: Terminal
) -> None:
    terminal.type("job", "history", "--diff-version", "0", "web")
    terminal.type("job", "history", "--diff-tag", "good", "web")
    queries = [two_version.query for two_version in two_versions.asked("/v1/job/web/versions")]
    assert [query.get("diff_version", query.get("diff_tag")) for query in queries] == ["0", "good"]


def test_a_history_can_be_of_one_version(two_versions: FakeDaemon, terminal: Terminal) -> None:
    printed = terminal.type("job", "history", "-p", "--version", "0", "web").output
    assert "Version     = 0" in printed
    assert "Priority" not in printed


@pytest.mark.parametrize("version", ["0", "good"])
def test_revert_waits_for_its_deployment(
    two_versions: FakeDaemon, terminal: Terminal, version: str
) -> None:
    two_versions.tell("/v1/job/web/revert", REGISTERED, method="POST")
    two_versions.tell(f"/v1/evaluation/{EVAL}", evaluated())
    two_versions.tell("/v1/job/web/allocations", [line()])
    ended = terminal.type("job", "revert", "--check-version", "1", "web", version)
    (asked,) = two_versions.asked("/v1/job/web/revert")
    assert asked.body == {"JobID": "web", "JobVersion": 0, "EnforcePriorVersion": 1}
    assert (ended.exit_code, 'job "web": ' in ended.output) == (0, True)


def test_revert_to_an_unknown_tag_lists_existing_tags(
    two_versions: FakeDaemon, terminal: Terminal
) -> None:
    ended = terminal.type("job", "revert", "web", "bad")
    assert ended.exit_code == 1
    assert (
        ended.stderr
        == "steward: job \"web\" has no version named 'bad'; its version names are: good\n"
    )


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ((), {"Latest": True, "Description": ""}),
        (("--version", "0", "--description", "d"), {"Version": 0, "Description": "d"}),
    ],
)
def test_version_tag_is_set(
    two_versions: FakeDaemon, terminal: Terminal, options: tuple[str, ...], body: Any
) -> None:
    path = "/v1/job/web/versions/good/tag"
    two_versions.tell(path, {"Name": "good"}, method="POST")
    ended = terminal.type("job", "tag", "apply", "--name", "good", *options, "web")
    assert ended.exit_code == 0
    assert [two_version.body for two_version in two_versions.asked(path)] == [body]


def test_version_tag_is_removed(two_versions: FakeDaemon, terminal: Terminal) -> None:
    path = "/v1/job/web/versions/good/tag"
    two_versions.tell(path, Told(msgspec.json.encode({"Name": ""})), method="DELETE")
    ended = terminal.type("job", "tag", "unset", "--name", "good", "web")
    assert ended.output == 'job "web": no version is named "good" now\n'
