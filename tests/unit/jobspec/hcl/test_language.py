"""The language beyond the corpus: values of expressions, and how texts are read."""

import json

import pytest

from tests.unit.jobspec.hcl.build import job, parse, refused, value

LOCALS = """
locals {
  l = ["a", "b", "c"]
  o = { a = { b = [1, { c = "deep" }] }, z = null }
  k = "b"
}
"""


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        # operators: precedence, conversion, evaluation of both operands
        ("1 + 2 * 3 - 4 / 2", 5),
        ("10 - 2 - 3", 5),
        ("2 * 3 % 4", 2),
        ("1 < 2 == true", True),
        ("!false && !(true && false)", True),
        ("-(1 + 2)", -3),
        ("- -1", 1),
        ("1 + 1 == 2 && 2 + 2 == 4 || false", True),
        ('"5" * "4"', 20),
        ('1 == 1 ? "y" : "n"', "y"),
        ("true ? false ? 1 : 2 : 3", 2),
        ("false ? 1 : true ? 2 : 3", 2),
        ("true ? 1 : local.l[99]", 1),
        ("false ? [1] : []", []),
        ('true ? [1, "a"] : [2, 3]', [1, "a"]),
        ("true ? { a = 1 } : { b = 2 }", {"a": 1}),
        ("true ? null : [1]", None),
        ("[1, 2] == [1, 2] && { a = 1 } != { a = 2 }", True),
        ("{ a = 1, b = 2 } == { b = 2, a = 1 }", True),
        # steps
        ("local.o.a.b[1].c", "deep"),
        ('local.o["a"]["b"].1.c', "deep"),
        ("local.o.a.b.0", 1),
        ("[[1, 2], [3]].0.1", 2),
        ("[[1, 2], [3]][1][0]", 3),
        ('{ a = 1 }["a"]', 1),
        ("(local.o).a.b[0]", 1),
        ('{ for k, v in local.o : k => v != null }["a"]', True),
        ("local.l[length(local.l) - 1]", "c"),
        ("local.l[*]", ["a", "b", "c"]),
        ("local.l.*", ["a", "b", "c"]),
        ("local.o[*].a.b[0]", [1]),
        ("[{ a = [1, 2] }, { a = [3] }][*].a[*]", [[1, 2], [3]]),
        ("[{ a = [{ b = 1 }] }].*.a", [[{"b": 1}]]),
        ("local.o.z[*]", []),
        # for expressions
        ('{ for i, x in local.l : x => i if x != "b" }', {"a": 0, "c": 2}),
        ("[for x in [3, 1, 2] : x * 2 if x > 1]", [6, 4]),
        ("[for x in [[1, 2], [3]] : [for y in x : y + 1]]", [[2, 3], [4]]),
        ('{ for x in convert(["b", "a"], set(string)) : x => upper(x) }', {"a": "A", "b": "B"}),
        ('[for k, v in convert(["b", "a"], set(string)) : k]', ["a", "b"]),
        ('true ? convert(["b", "b"], list(string)) : convert(["a"], set(string))', ["b", "b"]),
        ("{for\n k\n in\n local.l\n :\n k\n =>\n 1}", {"a": 1, "b": 1, "c": 1}),
        ("[for local in [1] : local]", [1]),
        # templates
        ('"${"a"}${"b"}"', "ab"),
        ('"a${1}${true}"', "a1true"),
        ('"%{if true}yes%{else}no%{endif}!"', "yes!"),
        ('"%{ for k, v in { b = 1, a = 2 } }${k}${v}%{ endfor }"', "a2b1"),
        ('"%{ if false }x%{ endif }"', ""),
        ('"${local.o.a}"', {"b": [1, {"c": "deep"}]}),
        ('"$${a}%%{b}$$$c"', "${a}%{b}$$$c"),
        ('"${"}"}"', "}"),
        ('"${{ a = 1 }.a}"', 1),
        ('"\\u00e9\\U0001f600\\t"', "é😀\t"),
        ('"e\\u0301"', "é"),
        # references that stay until a task runs
        ("node.x", "${node.x}"),
        ('"${ node.x }"', "${ node.x }"),
        ('"a-${attr.kernel.name}-${ NOMAD_X }"', "a-${attr.kernel.name}-${ NOMAD_X }"),
        ('env["HOME"]', '${env["HOME"]}'),
        ('upper("${node.x}")', "${NODE.X}"),
        ('[each.key, "${path.x}"]', ["${each.key}", "${path.x}"]),
        # objects
        ("merge({ a = 1\n b : 2, c = 3,\n}, {})", {"a": 1, "b": 2, "c": 3}),
        (
            'merge({ (local.k) = 1, "${local.k}x" = 2, "y z" = 3, a-b = 4 }, {})',
            {"b": 1, "bx": 2, "y z": 3, "a-b": 4},
        ),
        ("merge({ for = 1 }, {})", {"for": 1}),
        ("merge({ if = 1, in = 2 }, {})", {"if": 1, "in": 2}),
        # comments and newlines within
        ("[ # one\n 1, /* two */\n 2 // three\n]", [1, 2]),
        ("(\n1\n+\n2\n)", 3),
        ("max(\n1,\n2,\n)", 2),
    ],
)
def test_an_expression_has_a_value(expression: str, result: object) -> None:
    assert value(expression, before=LOCALS) == result


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('job "x" {\n  name = <<EOT\n a\n  EOT\n}', " a\n"),
        ('job "x" {\n  name = <<-EOT\n    a\n\n      b\n   \n  EOT\n}', "a\n\n  b\n   \n"),
        ('job "x" {\n  name = <<EOT\nEOT\n}', ""),
        ('job "x" {\n  name = <<EOT\nEOTX\n EOT \n}', "EOTX\n"),
        ('job "x" {\n  name = <<ä\na\nä\n}', "a\n"),
        ('job "x" {\n  name = <<EOT\n${"${<<IN\nx\nIN\n}"}EOT\nEOT\n}', "x\nEOT\n"),
        ('job "x" {\n  name = <<EOT\n%{ if true ~}\n  a\n%{ endif ~}\nb\nEOT\n}', "  a\nb\n"),
        ('job "x" {\n  name = <<-EOT\n    ${"a"}\n      ${"b"}\n    EOT\n}', "a\n  b\n"),
        ('job "x" {\n  name = <<EOT\n\\n$${x}\nEOT\n}', "\\n${x}\n"),
        ('job "x" {\r\n  name = <<EOT\r\na\r\nEOT\r\n}\r\n', "a\r\n"),
    ],
)
def test_a_heredoc_is_text(text: str, name: str) -> None:
    assert parse(text)["Name"] == name


@pytest.mark.parametrize(
    "text",
    [
        'job "x" { name = "y" }',
        'job x { name = "y" }',
        '\ufeffjob "x" {\n  name = "y"\n}',
        'job "x" { # comment\n  name = "y" # comment\n  // comment\n  /* comment\n  */\n}',
        'job "x" {\n\n\n  name = "y"\n\n}\n\n# end',
        'job /* a */ "x" /* b */ {\n name /* c */ = /* d */ "y" /* e */\n}',
        '{"job": {"x": {"name": "y", "//": "comment"}}}',
        '  {"job": [{"x": [{"name": "${upper(\\"y\\") == \\"Y\\" ? \\"y\\" : 1}"}]}]}',
        '{"variable": {"n": {"type": "string", "default": "y"}}, "job": {"x": {"name": "${var.n}"}}}',
        '{"locals": {"n": "y"}, "job": {"x": {"name": "${local.n}"}}}',
    ],
)
def test_job_file_has_alternative_notations(text: str) -> None:
    found = parse(text)
    assert (found["ID"], found["Name"]) == ("x", "y")


def test_key_of_a_json_object_is_a_template_only_in_an_expression() -> None:
    found = parse(
        """{"//": "a", "locals": {"//": "b", "l": "v"}, "job": {"x": {
          "//": "c",
          "meta": {"k-${local.l}": "1", "${node.x}": "2", "e\u0301": "3", "a%{": "4"},
          "group": {"g-${local.l}": {"task": {"t": {"driver": "d", "config": {
            "//": "d", "c-${local.l}": {"in-${local.l}": 1}}}}}}
        }}}"""
    )
    assert found["Meta"] == {"k-v": "1", "${node.x}": "2", "\u00e9": "3", "a%{": "4"}
    (group,) = found["TaskGroups"]
    assert group["Name"] == "g-${local.l}"
    assert group["Tasks"][0]["Config"] == {"c-${local.l}": {"in-v": 1}}


def test_a_job_file_in_json_has_the_blocks_of_its_tables() -> None:
    found = parse(
        """{"job": {"x": {
          "meta": {"a": "1"},
          "constraint": [{"attribute": "a"}, {"attribute": "b", "value": "\\u00e9"}],
          "dynamic": {"group": {"for_each": ["p", "q"], "iterator": "it", "labels": ["g-${it.value}"],
            "content": {"count": "${it.key}", "task": {"t": {"driver": "d", "config": {
              "a": ["${1 + 1}", "${node.x}"], "b": {"c": "%{ if true }x%{ endif }"}}}}}}},
          "group": {"last": {"network": {"port": {"http": {"static": 80}, "any": {}}}}}
        }}}"""
    )
    assert found["Meta"] == {"a": "1"}
    assert [constraint["RTarget"] for constraint in found["Constraints"]] == ["", "é"]
    groups = {group["Name"]: group for group in found["TaskGroups"]}
    assert {name: group["Count"] for name, group in groups.items()} == {
        "g-p": 0,
        "g-q": 1,
        "last": None,
    }
    assert groups["g-p"]["Tasks"][0]["Config"] == {"a": [2, "${node.x}"], "b": {"c": "x"}}
    network = groups["last"]["Networks"][0]
    assert [port["Label"] for port in network["ReservedPorts"]] == ["http"]
    assert [port["Label"] for port in network["DynamicPorts"]] == ["any"]


def test_locals_can_refer_to_each_other_in_any_order() -> None:
    before = "locals {\n  a = local.b + 1\n  b = local.c\n}\nlocals {\n  c = length(values(local.d))\n  d = { x = 1 }\n}"
    assert value("local.a", before=before) == 2


@pytest.mark.parametrize(
    ("before", "complaint"),
    [
        ("locals {\n  a = local.b\n  b = local.a\n}", "Circular reference"),
        ("locals {\n  a = local.a\n}", "Circular reference"),
        ("locals {\n  a = local\n  b = local.a\n}", "Circular reference"),
        ("locals {\n  a {}\n}", 'Unexpected "a" block'),
        ("locals {\n  a = 1\n  a = 2\n}", "Attribute redefined"),
    ],
)
def test_invalid_locals_are_errors(before: str, complaint: str) -> None:
    assert complaint in refused(job("r = 1", before=before))


def test_failing_local_is_reported_once() -> None:
    before = "locals {\n  a = 1 / 0\n  b = local.a\n  c = local.b\n}"
    said = refused(job("r = local.c", before=before))
    assert said.count("\n") == 0
    assert said.startswith("input.hcl:2,7-12: Operation failed")


def heredoc(*lines: str) -> object:
    """Return the text of a `<<-` heredoc of these lines."""
    return parse(
        'job "x" {\n  name = <<-EOT\n' + "".join(f"{line}\n" for line in lines) + "EOT\n}"
    )["Name"]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("    a", "  b"), "  a\nb\n"),
        # a line that begins with a directive or an interpolation has no indentation
        (("%{ if true }", "    a", "%{ endif }"), "\n    a\n\n"),
        (('${"a"}', "    b"), "a\n    b\n"),
        # an indented directive has the indentation before it
        (("  %{ if true }", "    a", "  %{ endif }"), "\n  a\n\n"),
        # a `~` that removes the line end also joins the next line
        (("  %{ if true ~}", "    a", "  %{ endif ~}", "  b"), "    a\n  b\n"),
        # a `~` before a directive removes its indentation, so the common indentation is zero
        (("  %{~ if true }", "    a", "  %{ endif }"), "\n    a\n  \n"),
        (("    a", "   ", "    b"), "a\n   \nb\n"),
        (("\ta", "\t\tb"), "a\n\tb\n"),
        (("\u00a0\u00a0a", "  b"), "a\nb\n"),
    ],
)
def test_heredoc_indentation_is_counted_in_the_source(lines: tuple[str, ...], text: str) -> None:
    assert heredoc(*lines) == text


OBJECTS = """variable "m" {
  type = map(object({
    z = number
    a = string
    n = map(object({ y = number, b = list(string) }))
  }))
  default = {
    k2 = { z = "1", a = 5, n = { q = { y = "3", b = [1, true] }, c = { y = 2, b = [] } } }
    k1 = { z = 2, a = true, n = {}, extra = 1 }
  }
}
"""


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("keys(var.m)", '["k1","k2"]'),
        ("[for k, v in var.m : k]", '["k1","k2"]'),
        ('[for k, v in var.m["k2"] : k]', '["a","n","z"]'),
        ("values(var.m.k2.n)", '[{"b":[],"y":2},{"b":["1","true"],"y":3}]'),
        ("var.m.k1", '{"a":"true","n":{},"z":2}'),
        (
            "var.m",
            '{"k1":{"a":"true","n":{},"z":2},"k2":{"a":"5",'
            '"n":{"c":{"b":[],"y":2},"q":{"b":["1","true"],"y":3}},"z":1}}',
        ),
    ],
)
def test_map_of_objects_is_sorted_by_name_and_has_the_variable_types(
    expression: str, result: str
) -> None:
    assert json.dumps(value(expression, before=OBJECTS), separators=(",", ":")) == result


def test_dynamic_blocks_of_a_map_are_sorted_by_name() -> None:
    text = OBJECTS + (
        'job "x" {\n  group "g" {\n    dynamic "task" {\n      for_each = var.m\n'
        '      labels = [task.key]\n      content {\n        driver = "d"\n'
        "        env = { for k, v in task.value.n : k => v.y }\n      }\n    }\n  }\n}\n"
    )
    tasks = parse(text)["TaskGroups"][0]["Tasks"]
    assert [(task["Name"], task["Env"]) for task in tasks] == [
        ("k1", {}),
        ("k2", {"c": "2", "q": "3"}),
    ]
