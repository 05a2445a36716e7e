"""Intended differences from Nomad's parser."""

import pytest

from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.hcl.source import HclError
from daemon.jobspec.parse import JobFile, sensitive_values
from tests.unit.jobspec.hcl.build import job, parse, refused

V1 = """
"job" "old" {
  "type" = "batch"
  group "g" {
    task "t" {
      driver = "exec"
      config = {
        command = "sleep"
        "args"  = ["1"]
        labels  = { team = "a" }
      }
      env = { A = "1", "B" = "2" }
      template = [
        { data = "one", destination = "local/1" },
        { data = "two", destination = "local/2" },
      ]
    }
  }
}
"""


def test_flags_set_values_and_override_the_variables_file() -> None:
    text = 'variable "n" { default = 1 }\nvariable "who" {}\njob "v" {\n  priority = var.n\n  name = var.who\n}\n'
    found = parse(text, variables='n = 2\nwho = "file"\n', flags={"n": "7"})
    assert (found["Priority"], found["Name"]) == (7, "file")


@pytest.mark.parametrize(
    ("kind", "flag", "value"),
    [
        ("string", "007", "007"),
        ("number", "7", 7),
        ("bool", "true", True),
        ("list(string)", '["a", "b"]', ["a", "b"]),
        ("map(number)", '{ a = "1" }', {"a": 1}),
    ],
)
def test_text_of_a_flag_is_parsed_by_its_variable_type(kind: str, flag: str, value: object) -> None:
    text = f'variable "x" {{ type = {kind} }}\n' + job("r = var.x")
    assert parse(text, flags={"x": flag})["TaskGroups"][0]["Tasks"][0]["Config"] == {"r": value}


def test_flag_sets_a_variable_without_a_default() -> None:
    text = 'variable "image" { type = string }\njob "v" {\n  name = var.image\n}\n'
    assert parse(text, flags={"image": "from-flag"})["Name"] == "from-flag"
    assert "image" in str(refused(text))


def test_invalid_flag_is_reported_with_its_name() -> None:
    said = refused('variable "n" { type = number }\njob "x" {}', flags={"n": "many"})
    assert "-var n:1,1-5: Invalid value for variable" in said


def test_version_1_syntax_gives_the_same_blocks() -> None:
    found = parse(V1, is_v1=True)
    task = found["TaskGroups"][0]["Tasks"][0]
    assert (found["ID"], found["Type"]) == ("old", "batch")
    assert task["Config"] == {"command": "sleep", "args": ["1"], "labels": [{"team": "a"}]}
    assert task["Env"] == {"A": "1", "B": "2"}
    assert [template["EmbeddedTmpl"] for template in task["Templates"]] == ["one", "two"]


def test_version_1_syntax_permits_several_items_on_a_line() -> None:
    lines = """job "x" {
      type = "batch"
      datacenters = ["a"]
      meta { a = "1" "b" = "2" }
      periodic { cron = "@daily" prohibit_overlap = true }
      group "g" { count = 2 }
      group "h" {
        task "t" { driver = "raw_exec" config { command = "c" l = [{ a = 1 b = 2 }] } }
      }
    }"""
    tight = parse(" ".join(lines.split()), is_v1=True)
    assert tight == parse(lines, is_v1=True)
    assert tight["Meta"] == {"a": "1", "b": "2"}
    assert [(task_group["Name"], task_group["Count"]) for task_group in tight["TaskGroups"]] == [
        ("g", 2),
        ("h", None),
    ]
    assert tight["TaskGroups"][1]["Tasks"][0]["Config"]["command"] == "c"


def test_version_1_syntax_is_refused_without_its_flag() -> None:
    with pytest.raises(HclError, match="Argument names must not be quoted"):
        parse(V1)


def test_constraint_shortcuts_take_effect() -> None:
    found = parse(
        'job "c" {\n'
        '  constraint {\n    attribute = "a"\n    set_contains_any = "p,q"\n  }\n'
        '  constraint {\n    attribute = "b"\n    set_contains_all = "r"\n  }\n'
        '  constraint {\n    attribute = "c"\n    is_set = "true"\n  }\n'
        '  constraint {\n    attribute = "d"\n    is_set = false\n  }\n'
        "}\n"
    )
    assert [
        (constraint["LTarget"], constraint["Operand"], constraint["RTarget"])
        for constraint in found["Constraints"]
    ] == [
        ("a", "set_contains_any", "p,q"),
        ("b", "set_contains_all", "r"),
        ("c", "is_set", ""),
        ("d", "is_not_set", ""),
    ]


def test_weight_out_of_range_is_an_error() -> None:
    said = refused('job "a" {\n  affinity {\n    attribute = "x"\n    weight    = 300\n  }\n}')
    assert "input.hcl:4,17-20: " in said
    assert "between -128 and 127" in said


def test_task_has_its_own_and_inherited_secrets_once() -> None:
    block = 'secret "{}" {{\n provider = "nomad"\n path = "{}"\n}}\n'
    found = parse(
        'job "s" {\n'
        + block.format("all", "job")
        + 'group "g" {\n'
        + block.format("both", "group")
        + 'task "t" {\n driver = "exec"\n'
        + block.format("own", "task")
        + block.format("both", "task")
        + "}\n}\n}\n"
    )
    secrets = found["TaskGroups"][0]["Tasks"][0]["Secrets"]
    assert [(secret["Name"], secret["Path"]) for secret in secrets] == [
        ("own", "task"),
        ("both", "task"),
        ("all", "job"),
    ]


def test_sensitive_variable_is_accepted() -> None:
    text = 'variable "x" {\n  default   = "s3"\n  sensitive = true\n}\njob "v" { name = var.x }\n'
    assert parse(text)["Name"] == "s3"


def test_sensitive_must_be_true_or_false() -> None:
    said = refused('variable "x" {\n  sensitive = "yes"\n}\njob "v" {}\n', flags={"x": "1"})
    assert "Write true or false" in str(said)


def test_every_text_in_a_sensitive_value_is_sensitive() -> None:
    text = """
variable "one" {
  type      = map(object({ key = string, list = list(number) }))
  sensitive = true
}
variable "two" { default = "open" }
variable "three" {
  default   = "from the default"
  sensitive = true
}
job "v" {}
"""
    file = JobFile(text=text, flags={"one": '{ a = { key = "k1", list = [12345678, 2] } }'})
    assert sensitive_values(file, FunctionEnvironment(random=bytes)) == [
        "k1",
        "12345678",
        "2",
        "from the default",
    ]
