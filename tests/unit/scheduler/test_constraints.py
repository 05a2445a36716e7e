"""Conditions on a node: targets and operators."""

import pytest

from daemon.scheduler.nodes.constraints import (
    compare,
    escapes_node_class,
    matches,
    resolve,
    text_of,
)
from storage.records.constraints import Constraint
from tests.unit.scheduler.world import node

HERE = node(
    "node-1",
    node_pool="gpu",
    attributes={"os.version": "12.4", "unique.hostname": "node-1"},
    meta={"zone": "a", "empty": ""},
)


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("${node.unique.id}", "id-of-node-1"),
        ("${node.unique.name}", "node-1"),
        ("${node.datacenter}", "dc1"),
        ("${node.class}", "class-1"),
        ("${node.pool}", "gpu"),
        ("${node.region}", "global"),
        ("${attr.os.version}", "12.4"),
        ("${attr.unique.hostname}", "node-1"),
        ("${meta.zone}", "a"),
        ("${meta.empty}", ""),
        ("linux", "linux"),
        ("$5", "$5"),
        ("${attr.nope}", None),
        ("${meta.nope}", None),
        ("${node.nope}", None),
        ("${device.model}", None),
        ("${env.HOME}", None),
        ("${", None),
    ],
)
def test_target_is_resolved_to_the_value_of_the_node(target: str, value: str | None) -> None:
    assert resolve(target, HERE, "global") == value


@pytest.mark.parametrize(
    ("operand", "left", "right"),
    [
        ("=", "a", "a"),
        ("==", "a", "a"),
        ("is", "a", "a"),
        ("!=", "a", "b"),
        ("not", "a", "b"),
        ("!=", None, "b"),
        ("<", "9", "10"),
        ("<=", "10", "10"),
        (">", "10", "9"),
        (">=", "10.0", "9.5"),
        (">", "1e2", "99"),
        ("<", "-1", "0"),
        ("<", "10", "9a"),  # one is not a number: compared as text
        ("<", "abc", "abd"),
        ("regexp", "debian-12", "^debian-1[0-9]$"),
        ("version", "1.5.0", ">= 1.2, < 2.0"),
        ("semver", "1.5.0-rc1", "> 1.4"),
        ("set_contains", "a, b,c", "c,a"),
        ("set_contains_all", "a,b", "b"),
        ("set_contains_any", "a,b", "z, b"),
        ("is_set", "", None),
        ("is_not_set", None, ""),
        ("distinct_hosts", None, "true"),
        ("distinct_property", "a", "2"),
    ],
)
def test_constraint_matches(operand: str, left: str | None, right: str | None) -> None:
    assert compare(operand, left, right)


@pytest.mark.parametrize(
    ("operand", "left", "right"),
    [
        ("=", "a", "b"),
        ("=", None, None),
        ("!=", "a", "a"),
        ("!=", None, ""),
        ("<", "10", "9"),
        ("<", None, "9"),
        ("regexp", "debian", "("),
        ("regexp", None, ".*"),
        ("version", "1.5.0-rc1", "> 1.4"),
        ("version", "no version", "> 1.4"),
        ("version", "1.5", "soon"),
        ("semver", "1.5", "~> 1.4"),
        ("set_contains", "a,b", "a,z"),
        ("set_contains_any", "a,b", "z"),
        ("set_contains_any", None, "z"),
        ("is_set", None, None),
        ("is_not_set", "", None),
        ("resembles", "a", "a"),
        ("", "a", "a"),
    ],
)
def test_constraint_does_not_match(operand: str, left: str | None, right: str | None) -> None:
    assert not compare(operand, left, right)


def test_constraint_resolves_both_sides() -> None:
    both = Constraint(
        l_target="${attr.unique.hostname}", operand="=", r_target="${node.unique.name}"
    )
    assert matches(both, HERE, "global")


@pytest.mark.parametrize(
    ("target", "escaped"),
    [
        ("${node.unique.id}", True),
        ("${attr.unique.hostname}", True),
        ("${meta.unique.rack}", True),
        ("${unique.x}", True),
        ("${attr.kernel.name}", False),
        ("${node.class}", False),
        ("unique.", False),
    ],
)
def test_only_unique_targets_distinguish_nodes_of_a_class(target: str, escaped: bool) -> None:
    assert escapes_node_class([Constraint(l_target=target)]) is escaped
    assert escapes_node_class([Constraint(r_target=target)]) is escaped


def test_constraint_is_shown_as_written() -> None:
    constraint = Constraint(l_target="${meta.zone}", operand="=", r_target="zz")
    assert text_of(constraint) == "${meta.zone} = zz"


def test_possibly_slow_search_fails_its_constraint() -> None:
    texts = {"attr": "x" * 100_000}
    rule = Constraint(l_target="${meta.attr}", operand="regexp", r_target="x[^y]{900}z|x")
    assert not matches(rule, node("node-2", meta=texts), "global")
    assert matches(rule, node("node-2", meta={"attr": "x"}), "global")
