"""Constraints that follow from other fields of groups and tasks."""

from typing import Any

import pytest

from storage.records.constraints import Constraint
from tests.unit.jobspec.build import complete, group, job, only_group, only_task, task

SEMVER, EQUAL = "semver", "="


def constraints(given: Any) -> list[tuple[str, str, str]]:
    found = only_group(given).constraints or []
    return [(constraint.l_target, constraint.operand, constraint.r_target) for constraint in found]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (group(), []),
        (
            group(Services=[{"Provider": "nomad"}]),
            [("${attr.nomad.service_discovery}", EQUAL, "true")],
        ),
        (
            group(task(Services=[{"Provider": "nomad", "Checks": [{}]}])),
            [
                ("${attr.nomad.service_discovery}", EQUAL, "true"),
                ("${attr.nomad.version}", SEMVER, ">= 1.4.0"),
            ],
        ),
        (group(Services=[{}]), [("${attr.consul.version}", SEMVER, ">= 1.8.0")]),
        (
            group(Services=[{"Cluster": "eu"}, {"Cluster": "eu"}]),
            [("${attr.consul.eu.version}", SEMVER, ">= 1.8.0")],
        ),
        (
            group(task(KillSignal="SIGTERM"), task("b", KillSignal="SIGINT")),
            [("${attr.os.signals}", "set_contains", "SIGINT,SIGTERM")],
        ),
        (
            group(task(Templates=[{"ChangeMode": "signal"}, {"ChangeSignal": "SIGUSR1"}])),
            [("${attr.os.signals}", "set_contains", "SIGHUP")],
        ),
        (
            group(task(SecretsConfig={"ChangeMode": "signal", "ChangeSignal": "sigusr2"})),
            [
                ("${attr.vault.version}", SEMVER, ">= 0.6.1"),
                ("${attr.os.signals}", "set_contains", "SIGUSR2"),
            ],
        ),
        (
            group(task(SecretsConfig={"Cluster": "x"})),
            [("${attr.vault.x.version}", SEMVER, ">= 1.11.0")],
        ),
        (
            group(task(Secrets=[{"Provider": "p"}, {"Provider": "p"}])),
            [("${attr.plugins.secrets.p.version}", "is_set", "")],
        ),
        (
            group(task(Resources={"NUMA": {"Affinity": "prefer"}})),
            [
                ("${attr.nomad.version}", SEMVER, ">= 1.6.3-dev"),
                ("${attr.kernel.name}", EQUAL, "linux"),
            ],
        ),
        (group(task(Resources={"NUMA": {}})), []),
        (
            group(Networks=[{"Mode": "bridge"}]),
            [
                (f"${{attr.plugins.cni.version.{plugin}}}", SEMVER, ">= 0.4.0")
                for plugin in ("bridge", "firewall", "host-local", "loopback", "portmap")
            ],
        ),
        (group(Networks=[{"Mode": "host"}]), []),
        (
            group(task(Schedule={"Cron": {"Start": "x"}})),
            [("${attr.nomad.version}", SEMVER, ">= 1.8.0-dev")],
        ),
        (
            group(task(Identities=[{"Name": "x"}])),
            [("${attr.nomad.version}", SEMVER, ">= 1.7.0-a")],
        ),
        (group(Consul={"Partition": "p"}), [("${attr.consul.partition}", EQUAL, "p")]),
        (
            group(Consul={"Partition": "p", "Cluster": "eu"}),
            [("${attr.consul.eu.partition}", EQUAL, "p")],
        ),
    ],
)
def test_group_has_the_implicit_constraints_of_its_parts(given: Any, wanted: list[Any]) -> None:
    assert constraints(job(given)) == wanted


def test_implied_constraints_follow_explicit_constraints() -> None:
    said = {"LTarget": "${node.class}", "RTarget": "a", "Operand": "="}
    given = job(group(Services=[{"Provider": "nomad"}], Constraints=[said]))
    assert [target for target, _, _ in constraints(given)] == [
        "${node.class}",
        "${attr.nomad.service_discovery}",
    ]


def test_a_constraint_on_the_same_attribute_replaces_an_implied_version() -> None:
    own = {"LTarget": "${attr.consul.version}", "RTarget": ">= 2.0", "Operand": "semver"}
    assert constraints(job(group(Services=[{}], Constraints=[own]))) == [
        ("${attr.consul.version}", SEMVER, ">= 2.0")
    ]


def test_task_service_of_an_agent_constrains_the_task() -> None:
    given = job(group(task(Services=[{}], Consul={"Partition": "p"})))
    assert constraints(given) == []
    assert only_task(given).constraints == [
        Constraint(l_target="${attr.consul.partition}", r_target="p", operand="="),
        Constraint(l_target="${attr.consul.version}", r_target=">= 1.8.0", operand="semver"),
    ]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"Name": "api", "PortLabel": "http"}, "consul-service_api-http"),
        ({"Name": "api", "TaskName": "main"}, "consul-service_main-api-"),
        ({"Name": "api", "Provider": "nomad"}, "own"),
    ],
)
def test_identity_is_named_after_an_agent_registered_service(given: Any, name: str) -> None:
    service = {**given, "Identity": {"Name": "own", "Audience": ["a"]}}
    (one,) = only_group(job(group(Services=[service]))).services or []
    assert one.identity is not None
    assert one.identity.name == name


def test_job_without_implied_constraints_is_unchanged() -> None:
    assert all(
        task_group.constraints is None
        for task_group in complete(job(group(), group())).task_groups or ()
    )
