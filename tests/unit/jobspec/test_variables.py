"""Input variables: declarations, values from every source, and conditions."""

import pytest

from daemon.jobspec.parse import JobFile, environment_used, parse_job
from tests.unit.jobspec.hcl.build import OUTSIDE, job, parse, refused, value


def declared(body: str) -> str:
    return f'variable "x" {{\n{body}\n}}\n'


@pytest.mark.parametrize(
    ("body", "given", "result"),
    [
        ("", "x = 5", 5),
        ("default = null", "", None),
        ("type = string", "x = 5", "5"),
        ("type = string", "x = null", None),
        ("type = list(number)", 'x = ["1", 2]', [1, 2]),
        ("type = set(string)", 'x = ["b", "a", "b", 1]', ["1", "a", "b"]),
        ("type = map(bool)", 'x = { a = "true" }', {"a": True}),
        ("type = tuple([string, list(number)])", 'x = [1, ["2"]]', ["1", [2]]),
        (
            "type = object({ a = string, b = object({ c = number }) })",
            'x = { a = 1, b = { c = "2", d = 3 } }',
            {"a": "1", "b": {"c": 2}},
        ),
        ("type = map(list(string))\n default = {}", "", {}),
        ("default = [1, 2]", 'x = [3, "4"]', [3, 4]),
        ('description = "d"\n default = 1', "", 1),
        ('default = { for k in ["a"] : k => 1 }', "", {"a": 1}),
        ("", 'x = "${1 + 1}-${true ? "a" : "b"}"', "2-a"),
        ("", '{"x": [1, {"y": null}]}', [1, {"y": None}]),
        ("", "x = <<EOT\na\nEOT\n", "a\n"),
    ],
)
def test_variable_has_its_value_in_its_type(body: str, given: str, result: object) -> None:
    text = job("r = var.x", before=declared(body))
    config = parse(text, variables=given)["TaskGroups"][0]["Tasks"][0]["Config"]
    assert config.get("r") == result


@pytest.mark.parametrize(
    ("before", "given", "complaint"),
    [
        (declared(""), "", 'input.hcl:1,1-13: Unset variable "x"'),
        (declared("type = number"), 'x = "a"', "input.hcl:1,5-8: Invalid value for variable"),
        (declared('type = number\n default = "a"'), "", "input.hcl:3,12-15: Invalid default value"),
        (declared("type = nubmer"), "", 'Did you mean "number"?'),
        (declared("type = lisst(string)"), "", 'Did you mean "list"?'),
        (declared("type = list(string, number)"), "", "requires one argument"),
        (declared("type = tuple(string)"), "", "requires a list of types"),
        (declared("type = object(string)"), "", "requires a map"),
        (declared("type = object({ (a) = string })"), "", "must be attribute names"),
        (declared("type = 5"), "", "A type specification is either"),
        (declared('default = upper("a")'), "", "Functions may not be called here"),
        (declared("default = local.a"), "", "Variables may not be used here"),
        (declared("defualt = 1"), "", 'Did you mean "default"?'),
        (declared("") + declared(""), "x = 1", "input.hcl:4,1-9: Duplicate variable"),
        ('variable "a b" {}', "", "Invalid variable name"),
        ("variables {\n a {}\n}", "", 'Unexpected "a" block'),
        (declared("validation {}"), "x = 1", 'argument "condition" is required'),
        (declared("validation {\n condition = var.y\n}"), "x = 1", "must refer to var.x"),
        (declared("validation {\n condition = var.x\n}"), "x = []", "either true or false"),
        (
            declared("validation {\n condition = var.x == 2\n}"),
            "x = 1",
            "does not meet the condition",
        ),
        (
            declared('validation {\n condition = var.x == 2\n error_message = "not ${var.x}"\n}'),
            "x = 1",
            "not 1",
        ),
        (declared("validation {\n condition = var.x.y\n}"), "x = 1", "primitive-typed value"),
        ("", "x {}", 'Unexpected "x" block'),
        ("", 'variable "x" {}', "Variables are declared in the job file"),
        ("", "x = upper(1)\n", ""),
        ("", "x = @", "unable to parse var content: input.hcl:1,5-6: Invalid character"),
        ("", '{"x": }', "unable to parse var content: input.hcl:1,7-8: Missing JSON value"),
    ],
)
def test_invalid_variables_are_reported(before: str, given: str, complaint: str) -> None:
    text = job("r = 1", before=before)
    if complaint:
        assert complaint in refused(text, variables=given)
    else:
        parse(text, variables=given)  # no expression uses the value


def test_several_errors_in_variables_and_locals_are_reported_together() -> None:
    before = declared("type = any") + "locals {\n a = nosuch()\n}\n" + 'variable "y" {}\n'
    said = refused(job("r = 1", before=before)).splitlines()
    assert len(said) == 3


def test_values_come_from_several_sources_and_the_last_is_used() -> None:
    names = "abcde"
    text = "".join(f'variable "{name}" {{ default = "default" }}\n' for name in names)
    config = "".join(f"{name} = var.{name}\n" for name in names)
    file = JobFile(
        text=job(config, before=text),
        environment=dict.fromkeys("bcde", "environment"),
        variable_files=(
            ("one", 'c = "one"\nd = "one"\ne = "one"\n'),
            ("two", 'd = "two"\ne = "two"\n'),
        ),
        flags={"e": "flag"},
    )
    found = parse_job(file, OUTSIDE)["TaskGroups"][0]["Tasks"][0]["Config"]
    assert found == {"a": "default", "b": "environment", "c": "one", "d": "two", "e": "flag"}
    assert environment_used(file) == {"b": "environment"}


def test_several_variables_can_be_declared_in_one_block() -> None:
    before = 'variables {\n  a = 1\n  b = ["x"]\n}'
    assert value("[var.a, var.b]", before=before) == [1, ["x"]]
    said = refused(job("r = 1", before=before), variables='a = "one"')
    assert "a number is required" in said


def test_error_in_a_variables_file_names_the_file() -> None:
    file = JobFile(
        text=job("r = 1", before=declared("type = number")),
        variable_files=(("my.vars", 'x = "a"'),),
    )
    with pytest.raises(Exception, match=r"my\.vars:1,5-8: Invalid value"):
        parse_job(file, OUTSIDE)
