"""All names of one driver have the same meaning everywhere."""

import ast
from pathlib import Path

import pytest

from daemon.jobs.namespaces import forbidden_drivers
from daemon.jobspec.policies import JobPolicySet
from daemon.matching.cluster_support import unavailable_features
from daemon.runner.drivers.podman import driver as podman
from storage.records.driver import SPELLINGS, canonical, is_listed, spellings
from storage.records.job_policy import JobPolicy, PolicyLevel
from storage.records.namespace import Namespace, NamespaceCapabilities
from tests.samples import group, job, task

ROOT = Path(__file__).parents[2]
PAIRS = [(name, other) for names in SPELLINGS for name in names for other in names]
pairs = pytest.mark.parametrize(("item", "other"), PAIRS)


def using(driver: str):
    return job("a", group("g", task("t", driver=driver)))


def keeps(rule: str, driver: str) -> bool:
    policies = JobPolicySet([JobPolicy(name="p", rule=rule, level=PolicyLevel.ADVISORY)])
    return not policies.check(using(driver), override=False)


@pairs
def test_namespace_treats_all_names_of_a_driver_alike(item: str, other: str) -> None:
    closed = NamespaceCapabilities(disabled_task_drivers=[item])
    namespace_capabilities = NamespaceCapabilities(enabled_task_drivers=[item])
    assert len(forbidden_drivers(using(other), Namespace(name="n", capabilities=closed))) == 1
    assert (
        forbidden_drivers(using(other), Namespace(name="n", capabilities=namespace_capabilities))
        == []
    )


@pairs
@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ('all TaskGroups.Tasks as t {{ t.Driver == "{}" }}', True),
        ('all TaskGroups.Tasks as t {{ t.Driver != "{}" }}', False),
        ("all TaskGroups.Tasks as t {{ t.Driver matches `^{}$` }}", True),
        ("all TaskGroups.Tasks as t {{ t.Driver not matches `^{}$` }}", False),
        ('all TaskGroups.Tasks as t {{ "{}" in t.Driver }}', True),
        ('any TaskGroups.Tasks as t {{ t.Driver not contains "{}" }}', False),
        ('not (TaskGroups.0.Tasks.0.Driver == "{}")', False),
    ],
)
def test_job_policy_treats_all_names_of_a_driver_alike(
    item: str, other: str, rule: str, holds: bool
) -> None:
    assert keeps(rule.format(item), other) is holds


@pairs
def test_pool_offers_a_driver_under_all_its_names(item: str, other: str) -> None:
    assert not list(unavailable_features(group("g", task("t", driver=item)), [other]))


async def test_node_reports_a_driver_under_all_its_names(tmp_path: Path) -> None:
    found = await podman.find(str(tmp_path / "none"), {}, volumes=False, processes=1)
    assert tuple(item.name for item in found) == spellings("podman")


def test_other_drivers_are_not_mixed_up() -> None:
    assert canonical("exec") == "exec"
    assert not is_listed("raw_exec", ["exec", "docker"])
    assert not keeps('all TaskGroups.Tasks as t { t.Driver == "exec" }', "docker")


def _modules() -> list[Path]:
    return [path for top in ("daemon", "storage") for path in (ROOT / top).rglob("*.py")]


def _direct_comparisons(path: Path) -> list[str]:
    """Return the places where a module compares driver names, or contains a second name of one."""
    others = {name for names in SPELLINGS for name in names[1:]}
    found: list[str] = []
    text = path.read_text()
    # Parsing takes long, and most modules have none of these words.
    if not any(word in text for word in ("driver", *others)):
        return found
    for node in ast.walk(ast.parse(text)):
        is_name = isinstance(node, ast.Constant) and node.value in others
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if is_name or any(
            isinstance(side, ast.Attribute) and side.attr == "driver" for side in sides
        ):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_only_the_table_defines_equivalent_names() -> None:
    table = ROOT / "storage/records/driver.py"
    # The launcher's messages permit only two driver names, so it never gets the name from a job.
    launcher = ROOT / "daemon/launcher"
    others = [path for path in _modules() if path != table and launcher not in path.parents]
    assert [at for path in others for at in _direct_comparisons(path)] == []
