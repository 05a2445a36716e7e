"""Policies: accepted jobs, warnings and denials."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from daemon.jobspec.policies import JobPolicySet
from storage.errors import Denied, Invalid
from storage.records.codec import Document
from storage.records.job_policy import JobPolicy, PolicyLevel
from tests.unit.jobspec.build import complete, group, job, task

DOCS = Path(__file__).parents[3] / "docs" / "job-policies.md"
TOML = re.search(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)


def keeps(rule: str, document: Document) -> bool:
    """Return whether a job meets a rule."""
    policies = JobPolicySet([JobPolicy(name="p", rule=rule, level=PolicyLevel.ADVISORY)])
    return not policies.check(complete(document), override=False)


# ---- the examples of the documentation --------------------------------------------------------------


def example(name: str) -> JobPolicy:
    assert TOML
    value = msgspec.convert(tomllib.loads(TOML[1])["job_policies"], list[JobPolicy])
    return next(item for item in value if item.name == name)


TOOL = {"command": "/opt/tools/backup"}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("owner", job(Meta={"owner": "ops"}), job(Meta={"team": "ops"})),
        ("owner", job(Meta={"owner": "ops"}), job()),
        (
            "memory",
            job(group(task(Resources={"MemoryMB": 4096}))),
            job(group(), group(task(), task("b", Resources={"MemoryMB": 4097}), Name="b")),
        ),
        (
            "commands",
            job(group(task(Config=TOOL))),
            job(group(task(Config={"command": "/bin/sh"}))),
        ),
        ("commands", job(group(task(Config=TOOL))), job(group(task()))),
        ("isolation", job(Namespace="dev"), job(Namespace="prod")),
        (
            "isolation",
            job(group(task(Driver="exec")), Namespace="prod"),
            job(group(task(Driver="exec"), task("b")), Namespace="prod"),
        ),
        ("counts", job(group(Count=20)), job(group(Count=1), group(Name="b", Count=21))),
    ],
)
def test_documentation_examples_work(name: str, good: Document, bad: Document) -> None:
    rule = example(name).rule
    assert (keeps(rule, good), keeps(rule, bad)) == (True, False)


# ---- the language -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("Priority < 50", False),
        ("Priority <= 50", True),
        ("Priority > 49", True),
        ("Priority >= 51", False),
        ("Priority>=50", True),
        ("all TaskGroups.Tasks as t { t.KillTimeout <= `5s` }", True),
        ("all TaskGroups.Tasks as t { t.KillTimeout < `5s` }", False),
        ("all TaskGroups.Tasks as t { t.KillTimeout == 5000000000 }", True),
        ("any TaskGroups.Tasks as t { t.Name == side }", True),
        ("any TaskGroups.Tasks as t { t.Name == other }", False),
        ("all TaskGroups.Services as s { s.Name == never }", True),  # the job has no service
        ("any TaskGroups.Services as s { s.Name == never }", False),
        ("any TaskGroups as g { any g.Tasks as t { t.Name == side } }", True),
        ("any TaskGroups.0.Tasks as t { t.Name == side }", True),
        ("all TaskGroups.Tasks as i, t { i < 2 }", True),
        ("any TaskGroups.Tasks.Env as key, value { key == A and value == `1` }", True),
        ("all TaskGroups.Tasks as t { t.Config.port <= 80 }", False),  # one task has no port
        ("any TaskGroups.Tasks as t { t.Config.port <= 80 }", True),
        ("Periodic is nil", True),
        ("Periodic.TimeZone == UTC", False),
        ("Periodic.TimeZone != UTC", True),
        ("not (any TaskGroups as g { g.Scaling.Max > 5 })", True),
    ],
)
def test_rule_compares_by_order_and_iterates_over_lists(rule: str, holds: bool) -> None:
    given = job(group(task(Config={"port": 80}), task("side", Env={"A": "1"})))
    assert keeps(rule, given) is holds


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("Priority <", "1:11 (10): no match found, expected:"),
        ("Prio < 50", 'Prio: there is no field "Prio"; did you mean Priority?'),
        ("Priority < high", 'strconv.ParseInt: parsing "high": invalid syntax'),
        ("Priority == high", 'strconv.ParseInt: parsing "high": invalid syntax'),
        ("Name < b", "cannot compare type string by order, for selector: "),
        ("TaskGroups == 1", "cannot compare type slice, for selector: "),
        ("TaskGroups.Count < 5", "TaskGroups.Count goes through a list: write `any` or `all`"),
        ("all Name as n { n == a }", "Name is neither a list nor a map"),
        ("all TaskGroups.Tsks as t { t.Name == a }", "did you mean Tasks?"),
        ("all TaskGroups as g { g.Cnt < 5 }", 'g.Cnt: there is no field "Cnt"'),
        ("all TaskGroups as g { g.Name.x == a }", "a string has no fields"),
        ("all TaskGroups.Tasks as t { t.KillTimeout < soon }", "is not a duration"),
        ("Name matches `(`", "failed to compile regular expression"),
    ],
)
def test_meaningless_rule_is_refused_early(rule: str, why: str) -> None:
    with pytest.raises(Invalid) as raised:
        JobPolicySet([JobPolicy(name="p", rule=rule)])
    assert str(raised.value).startswith('job_policies, "p", rule: ')
    assert why in str(raised.value)


# ---- levels -----------------------------------------------------------------------------------------

BROKEN = {"rule": "Priority > 60", "message": "too modest"}


@pytest.mark.parametrize(
    ("level", "override"),
    [(PolicyLevel.ADVISORY, False), (PolicyLevel.ADVISORY, True), (PolicyLevel.SOFT, True)],
)
def test_job_is_accepted_with_a_warning(level: PolicyLevel, override: bool) -> None:
    policies = JobPolicySet([JobPolicy(name="p", level=level, **BROKEN)])
    said = policies.check(complete(job()), override=override)
    assert said == [f'policy "p" ({level}): too modest']


@pytest.mark.parametrize(
    ("level", "override"),
    [(PolicyLevel.SOFT, False), (PolicyLevel.HARD, False), (PolicyLevel.HARD, True)],
)
def test_a_job_is_denied(level: PolicyLevel, override: bool) -> None:
    policies = JobPolicySet([JobPolicy(name="p", level=level, **BROKEN)])
    with pytest.raises(Denied) as denied:
        policies.check(complete(job()), override=override)
    assert str(denied.value) == f'job "g" is denied: policy "p" ({level}): too modest'


def test_all_violated_policies_are_named_together() -> None:
    policies = JobPolicySet([JobPolicy(name=name, rule="Priority > 60") for name in ("a", "b")])
    with pytest.raises(Denied, match=r'policy "a" .*: not Priority > 60; policy "b"'):
        policies.check(complete(job()), override=True)


def test_undecidable_policy_denies_the_job() -> None:
    rule = "all TaskGroups.Tasks as t { t.Config.command matches `^/` }"
    policies = JobPolicySet([JobPolicy(name="p", rule=rule)])
    with pytest.raises(Denied, match="value of type"):
        policies.check(complete(job(group(task(Config={"command": ["/bin/sh"]})))), override=False)


def test_job_that_satisfies_all_policies_is_accepted_without_warnings() -> None:
    policies = JobPolicySet([JobPolicy(name="p", rule="Priority == 50")])
    assert policies.check(complete(job()), override=False) == []
