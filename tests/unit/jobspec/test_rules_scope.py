"""Constraints, affinities and spreads, and the paths that jobs name."""

from typing import Any

import pytest

from daemon.jobspec.rules.paths import escapes, is_below
from tests.unit.jobspec.build import errors, group, in_group, in_task, job, nested, task

KERNEL = "${attr.kernel.name}"


def one_constraint(*texts: str) -> list[str]:
    return [f"Constraint 1 validation failed: {nested(*texts)}"] if texts else []


def limit(operand: str, value: str = "", target: str = KERNEL) -> dict[str, str]:
    return {"LTarget": target, "RTarget": value, "Operand": operand}


# ---- constraints --------------------------------------------------------------------------------


@pytest.mark.parametrize("operand", ["=", "==", "is", "!=", "not", "<", "<=", ">", ">="])
def test_comparison_needs_both_operands(operand: str) -> None:
    assert errors(job(Constraints=[limit(operand, "linux")])) == []
    problem = f'Operator "{operand}" requires an RTarget'
    assert errors(job(Constraints=[limit(operand)])) == one_constraint(problem)


@pytest.mark.parametrize("operand", ["set_contains", "set_contains_all", "set_contains_any"])
def test_a_set_needs_members(operand: str) -> None:
    assert errors(job(Constraints=[limit(operand, "a,b")])) == []
    problem = "Set contains constraint requires an RTarget"
    assert errors(job(Constraints=[limit(operand)])) == one_constraint(problem)


@pytest.mark.parametrize("operand", ["is_set", "is_not_set"])
def test_presence_constraint_has_no_value(operand: str) -> None:
    assert errors(job(Constraints=[limit(operand)])) == []
    problem = f'Operator "{operand}" does not support an RTarget'
    assert errors(job(Constraints=[limit(operand, "x")])) == one_constraint(problem)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (limit("", "linux"), ["Missing constraint operand", 'Unknown constraint type ""']),
        (limit("nope", "x"), ['Unknown constraint type "nope"']),
        (limit("regexp", "^li"), []),
        (
            limit("regexp", "("),
            ["Regular expression failed to compile: error parsing regexp: missing closing ): `(`"],
        ),
        (limit("version", ">= 1.2, < 2"), []),
        (limit("version", "x"), ["Version constraint is invalid: malformed constraint: x"]),
        (limit("semver", ">= 1.2.0"), []),
        (limit("semver", "~> 1"), ["Semver constraint is invalid: Malformed constraint: ~> 1"]),
        (limit("distinct_hosts", "", ""), []),
        (limit("distinct_hosts", "anything", ""), []),
        (limit("distinct_property", "", "${meta.rack}"), []),
        (limit("distinct_property", "2", "${meta.rack}"), []),
        (
            limit("distinct_property", "0", "${meta.rack}"),
            ["Distinct Property must have an allowed count of 1 or greater: 0 < 1"],
        ),
        (
            limit("distinct_property", "-1", "${meta.rack}"),
            [
                'Failed to convert RTarget "-1" to uint64: strconv.ParseUint: parsing "-1": '
                "invalid syntax"
            ],
        ),
        (
            limit("distinct_property", "", ""),
            ["no attribute provided but is required by operator"],
        ),
        (limit("=", "x", ""), ["no attribute provided but is required by operator"]),
    ],
)
def test_each_operand_has_its_rules(given: dict[str, str], texts: list[str]) -> None:
    assert errors(job(Constraints=[given])) == one_constraint(*texts)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("${node.unique.id}", None),
        ("${node.datacenter}", None),
        ("${node.unique.name}", None),
        ("${node.class}", None),
        ("${node.pool}", None),
        ("${attr.cpu.arch}", None),
        ("${meta.rack}", None),
        ("${device.model}", None),
        ("linux", None),  # taken literally
        ("$attr.cpu.arch", 'attribute "$attr.cpu.arch" is missing an opening brace'),
        ("${attr.cpu.arch", 'attribute "${attr.cpu.arch" is missing a closing brace'),
        ("${node.nope}", 'unsupported attribute "${node.nope}"'),
        ("${env.HOME}", 'unsupported attribute "${env.HOME}"'),
    ],
)
def test_only_node_attributes_can_be_constrained(target: str, problem: str | None) -> None:
    wanted = one_constraint(problem) if problem else []
    assert errors(job(Constraints=[limit("=", "x", target)])) == wanted


def test_constraints_are_numbered_by_position() -> None:
    good, bad = limit("=", "x"), limit("=")
    problem = 'Operator "=" requires an RTarget'
    second = f"Constraint 2 validation failed: {nested(problem)}"
    assert errors(job(Constraints=[good, bad])) == [second]
    assert errors(job(group(Constraints=[good, bad]))) == in_group(second)
    assert errors(job(group(task(Constraints=[good, bad])))) == in_task(second)


def test_possibly_slow_pattern_in_a_literal_text_is_refused() -> None:
    costly = limit("regexp", "x[^y]{900}z", "x" * 100_000)
    (found,) = errors(job(Constraints=[costly]))
    assert "LTarget: the search of `x[^y]{900}z` in 100000 characters may take longer" in found
    (found,) = errors(job(group(Affinities=[{**costly, "Weight": 50}])))
    assert "LTarget: the search of" in found
    assert errors(job(Constraints=[limit("regexp", "x[^y]{900}z")])) == []


def test_patterns_of_a_job_share_a_limit() -> None:
    # Each takes 8 ms to compile, because it has thousands of instructions.
    large = [limit("regexp", rf"{number}\p{{L}}{{20}}") for number in range(200)]
    *_, last = errors(job(Constraints=large))
    assert last == (
        "Constraints and Affinities: the regular expressions take longer than 1 s: "
        "use fewer or shorter expressions, or less repetition"
    )
    assert errors(job(Constraints=large[:50])) == []
    small = [limit("regexp", f"^{number}a{{2}}$") for number in range(1_000)]
    assert errors(job(Constraints=small)) == []


@pytest.mark.parametrize("operand", ["distinct_hosts", "distinct_property"])
def test_distinct_constraint_is_invalid_on_a_task(operand: str) -> None:
    assert errors(job(group(task(Constraints=[limit(operand)])))) == in_task(
        f"Constraint 1 has disallowed Operand at task level: {operand}"
    )


# ---- affinities ---------------------------------------------------------------------------------


def weighed(weight: int | None = 50, **fields: str) -> dict[str, Any]:
    given = {"LTarget": KERNEL, "RTarget": "linux", "Operand": "=", **fields}
    return given if weight is None else {**given, "Weight": weight}


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (weighed(), []),
        (weighed(None), []),  # 50
        (weighed(100), []),
        (weighed(-100), []),
        (weighed(0), ["Affinity weight cannot be zero"]),
        (weighed(101), ["Affinity weight must be within the range [-100,100]"]),
        (weighed(-101), ["Affinity weight must be within the range [-100,100]"]),
        (weighed(Operand=""), ["Missing affinity operand", 'Unknown affinity operator ""']),
        (weighed(Operand="nope"), ['Unknown affinity operator "nope"']),
        (weighed(Operand="is_set"), ['Unknown affinity operator "is_set"']),
        (weighed(Operand="<", RTarget=""), ['Operator "<" requires an RTarget']),
        (weighed(Operand="set_contains_any", RTarget="a"), []),
        (
            weighed(Operand="set_contains", RTarget=""),
            ["Set contains operators require an RTarget"],
        ),
        (
            weighed(Operand="version", RTarget="1.x"),
            ["Version affinity is invalid: malformed constraint: 1.x"],
        ),
        (
            weighed(Operand="semver", RTarget="x"),
            ["Semver affinity is invalid: Malformed constraint: x"],
        ),
        (
            weighed(Operand="regexp", RTarget="*"),
            [
                "Regular expression failed to compile: error parsing regexp: missing argument to "
                "repetition operator: `*`"
            ],
        ),
        (weighed(LTarget=""), ["No LTarget provided but is required"]),
    ],
)
def test_each_affinity_is_validated(given: dict[str, Any], texts: list[str]) -> None:
    wanted = [f"Affinity 1 validation failed: {nested(*texts)}"] if texts else []
    assert errors(job(Affinities=[given])) == wanted
    assert errors(job(group(Affinities=[given]))) == (in_group(*wanted) if wanted else [])
    assert errors(job(group(task(Affinities=[given])))) == (in_task(*wanted) if wanted else [])


def test_system_job_has_no_affinities() -> None:
    refused = "System jobs may not have an affinity block"
    assert errors(job(Type="system", Affinities=[weighed()])) == [refused]
    assert errors(job(group(Affinities=[weighed()]), Type="system")) == in_group(refused)
    assert errors(job(group(task(Affinities=[weighed()])), Type="system")) == in_task(refused)
    refused = "System jobs may not have a spread block"
    spread = {"Attribute": "${node.datacenter}", "Weight": 50}
    assert errors(job(Type="system", Spreads=[spread])) == [refused]
    assert errors(job(group(Spreads=[spread]), Type="system")) == in_group(refused)


# ---- spreads ------------------------------------------------------------------------------------


def targets(**percents: int) -> list[dict[str, Any]]:
    return [{"Value": value, "Percent": percent} for value, percent in percents.items()]


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Attribute": "a", "Weight": 100}, []),
        ({"Attribute": "a"}, []),  # 50
        ({"Attribute": "", "Weight": 1}, ["Missing spread attribute"]),
        (
            {"Attribute": "a", "Weight": 0},
            ["Spread block must have a positive weight from 0 to 100"],
        ),
        (
            {"Attribute": "a", "Weight": 101},
            ["Spread block must have a positive weight from 0 to 100"],
        ),
        ({"Attribute": "a", "SpreadTarget": targets(x=70, y=30)}, []),
        (
            {"Attribute": "a", "SpreadTarget": targets(x=70, y=40)},
            ["Sum of spread target percentages must not be greater than 100%; got 110%"],
        ),
        (
            {"Attribute": "a", "SpreadTarget": targets(x=101)},
            [
                'Spread target percentage for value "x" must be between 0 and 100',
                "Sum of spread target percentages must not be greater than 100%; got 101%",
            ],
        ),
        (
            {"Attribute": "a", "SpreadTarget": [*targets(x=1), *targets(x=2)]},
            ['Spread target value "x" already defined'],
        ),
    ],
)
def test_each_spread_is_validated(given: dict[str, Any], texts: list[str]) -> None:
    wanted = [f"Spread 1 validation failed: {nested(*texts)}"] if texts else []
    assert errors(job(Spreads=[given])) == wanted
    assert errors(job(group(Spreads=[given]))) == (in_group(*wanted) if wanted else [])


# ---- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "path", "out"),
    [
        ("task", "", False),
        ("task", "local/x", False),
        ("task", "../alloc/data", False),
        ("task", "..", False),
        ("task", "../..", True),
        ("task", "../../etc", True),
        ("task", "a/../../..", True),
        ("task", "/etc/passwd", False),  # relative to the folder
        ("task/local", "../../x", False),
        ("task/local", "../../../x", True),
    ],
)
def test_path_must_not_leave_the_allocation(folder: str, path: str, out: bool) -> None:
    assert escapes(folder, path) is out


@pytest.mark.parametrize(
    ("parent", "path", "below"),
    [
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a", "/ab", False),
        ("/a/b", "/a", False),
        ("a", "a/b", True),
        ("/a", "a/b", False),
    ],
)
def test_directory_can_be_below_another(parent: str, path: str, below: bool) -> None:
    assert is_below(parent, path) is below
