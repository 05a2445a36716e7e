"""Mistakes: all in one answer, each with its position, the line and the nearest name."""

import pytest

from daemon.jobspec.hcl.source import MAX_SHOWN, Diagnostic, HclError, SourceText
from tests.unit.jobspec.hcl.build import job, parse, refused

SYNTAX = """job "x" {
  a = [1 2]
  b "c"
  group "g" {
    d = {
      e = 1 f = 2
    }
    task {
      h: 1
    }
  }
  i = (1
  j = "open
  k = 1
}
"""


def places(text: str) -> list[str]:
    return [line.split(": ")[0].removeprefix("input.hcl:") for line in refused(text).splitlines()]


def test_syntax_errors_do_not_stop_the_parser() -> None:
    assert places(SYNTAX) == ["13,12-14,1", "2,10-11", "3,8-4,1", "6,13-14", "9,7-8", "13,3-4"]


def test_errors_in_all_parts_of_a_job_are_found() -> None:
    said = places(
        """job "x" {
  bogus = 1
  group "g" {
    count = "many"
    netwrk {}
    task "t" {
      driver = nosuch()
      config {
        a = local.none
        b = [upper(1, 2), 1 + true]
      }
    }
  }
  group "h" "i" {}
  vault {}
  vault {}
}
"""
    )
    assert said == [
        "2,3-8",
        "14,13-16",
        "5,5-11",
        "4,14-18",
        "7,16-22",
        "7,16-23",
        "9,18-23",
        "10,23-24",
        "10,31-35",
        "16,3-8",
    ]


def test_some_errors_are_shown_and_the_others_counted() -> None:
    lines = "".join(f"  a{number} = 1\n" for number in range(MAX_SHOWN + 7))
    said = refused(f'job "x" {{\n{lines}}}\n').splitlines()
    assert len(said) == MAX_SHOWN + 1
    assert said[-1] == "and 7 more"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("  nmae = 1", 'Did you mean "name"?'),
        ("  priorty = 1", 'Did you mean "priority"?'),
        ('  gruop "g" {}', 'Did you mean "group"?'),
        ("  update = { max_parallel = 1 }", 'Did you mean to define a block of type "update"?'),
        ("  priority {}", 'Did you mean to define argument "priority"?'),
        ("  name = lookupp({}, 1, 2)", 'Did you mean "lookup"?'),
        ('  name = "%{ fro x in [] }%{ endfor }"', 'Did you mean "for"?'),
        ('  dynamic "grup" {\n    for_each = []\n    content {}\n  }', 'Did you mean "group"?'),
    ],
)
def test_nearest_known_name_is_suggested(text: str, hint: str) -> None:
    assert hint in refused(f'job "x" {{\n{text}\n}}\n')


def test_distant_name_gets_no_suggestion() -> None:
    assert refused('job "x" {\n  nonsense = 1\n}').endswith('"nonsense" is not expected here.')


def explained(text: str) -> list[str]:
    with pytest.raises(HclError) as caught:
        parse(text)
    return caught.value.explained().splitlines()


def test_error_shows_the_line_with_a_mark_below() -> None:
    assert explained('job "x" {\n\tname = "é${local.none}"\n}') == [
        'input.hcl:2,18-23: Unsupported attribute; This object does not have an attribute named "none".',
        '  2 | \tname = "é${local.none}"',
        "    | \t                ^^^^^",
    ]


def test_errors_caused_by_another_error_are_hidden() -> None:
    text = 'job "x" {\n  name = local.none\n}'
    assert refused(text).count("\n") == 1
    assert len(explained(text)) == 3


def test_long_line_is_shortened_around_the_error() -> None:
    _, line, mark = explained(f'job "x" {{ name = "{"a" * 500}${{local.none}}" }}')
    assert len(line) < 140
    assert line[mark.index("^") : mark.rindex("^") + 1] == ".none"


def test_multiline_error_is_marked_on_its_first_line() -> None:
    source = SourceText("x", "abc\ndef")
    diagnostic = Diagnostic(summary="s", detail="d", source=source, start=1, end=6)
    assert str(diagnostic) == "x:1,2-2,3: s; d"
    assert diagnostic.excerpt() == "  1 | abc\n    |  ^^"


@pytest.mark.parametrize(
    ("expression", "complaints"),
    [
        ('"a" + [1]', ["left operand: a number is required", "right operand: number required"]),
        ("[nosuch(), local.x]", ['no function named "nosuch"', 'attribute named "x"']),
        ("{ a = 1 + true, b = var.y }", ["number required, but have bool", 'named "y"']),
        ('"${null}-${[]}"', ["The expression result is null", "string required, but have tuple"]),
        ("max([1], {})", ["number required, but have tuple", "number required, but have object"]),
        ("[for x in [1, 2] : x.a]", ["primitive-typed value", "primitive-typed value"]),
        ("null ? 1 : 2", ["The condition value is null"]),
        ("{ (null) = 1, [] = 2 }", ["null value as a key", "string required, but have tuple"]),
        ("[1, 2][5] ", ["greater than or equal to the length"]),
        ("[1][[]]", ["number required, but have tuple"]),
        ("convert([1], set(number))[0]", ["does not have any indices"]),
        ('{ a = 1 }["b"]', ["does not identify an element"]),
        ("[{ a = 1 }].a", ["[*].a"]),
        ("true ? [1] : 2", ["consistent types"]),
        ("{ for x in [1] : x => 1 if 3 }", ["bool required, but have number"]),
        ("{ for x in [[1]] : x => 1 }", ["string required, but have tuple"]),
        ("-null", ["argument must not be null"]),
        ("!5", ["bool required, but have number"]),
        ('"5x" * 2', ["a number is required"]),
        ("1e5000", ["at most 1024"]),
    ],
)
def test_all_errors_of_an_expression_are_reported(expression: str, complaints: list[str]) -> None:
    said = refused(job(f"r = {expression}"))
    lines = [line for line in said.splitlines() if "must be known" not in line]
    assert len(lines) == len(complaints), said
    assert [
        complaint for line, complaint in zip(lines, complaints, strict=True) if complaint in line
    ] == complaints


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"job": {"x": 5}}', "1,15-16: Incorrect JSON value type"),
        ('{"job": {"x": {"name": "a${"}}}', "Missing expression"),
        ('{"job": {"x": {}}} x', "1,20-21: Extraneous data after value"),
        ('{"job": {"x": {},}}', "1,18-19: Trailing comma"),
        ('{"job": {"x": {"name": tru}}}', 'Did you mean "true"?'),
        ('{"job": {"x": {"name": "a\nb"}}}', "Invalid JSON string"),
        ('{"job" {}}', "Missing property value colon"),
        ("{job: {}}", "Missing property name"),
        ('{"job": {"x": {"name": "${1 + true}"}}}', "1,31-35: Invalid operand"),
        ('{"job": {"x": {"dynamic": {"group": {"content": {}}}}}}', 'argument "for_each"'),
        ('{"job": {"x": {"priority": "high"}}}', "1,28-34: Unsuitable value type"),
        (
            '{"job": {"x": {"type": "batch", "type": "service"}}}',
            '1,33-39: Duplicate argument; The argument "type" was already set at '
            "input.hcl:1,16-31.",
        ),
        (
            '{"job": {"x": {"meta": {"a": "1", "a": "2"}}}}',
            '1,35-38: Duplicate object attribute; An attribute named "a" was already defined',
        ),
        (
            '{"job": {"x": {"task": {"t": {"driver": "d", "config": {"a": 1, "a": 2}}}}}}',
            '1,65-68: Duplicate argument; The argument "a" was already set',
        ),
        ('{"locals": {"a": 1, "a": 2}, "job": {"x": {}}}', "1,21-24: Duplicate argument"),
        ('{"variables": {"a": 1, "a": 2}, "job": {"x": {}}}', "1,24-27: Duplicate argument"),
        ('{"job": {"x": {"meta": {"${1 +": "1", "${1 +": "2"}}}}', "Duplicate object attribute"),
    ],
)
def test_error_in_json_has_its_position(text: str, complaint: str) -> None:
    assert complaint in refused(text)


def test_repeated_value_in_a_variables_file_in_json_is_refused() -> None:
    said = refused('variable "a" {}\njob "x" {}\n', variables='{"a": 1, "a": 2}')
    assert '1,10-13: Duplicate argument; The argument "a" was already set' in said
