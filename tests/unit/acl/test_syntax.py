"""The text of a policy: HCL of version 1 and JSON become the same tree."""

import pytest

from daemon.acl.policy_parser import MAX_DEPTH, MAX_TEXT, PolicyObject, Value, parse_policy_text
from storage.errors import Malformed


def plain(value: Value) -> object:
    """Return a value with objects as lists of keys and values."""
    if isinstance(value, PolicyObject):
        return [(item.keys, plain(item.value)) for item in value.items]
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", []),
        ("# nothing\n// here\n/* at all */", []),
        ('a = "b"', [(("a",), "b")]),
        ('"a" = "b"', [(("a",), "b")]),
        ('path "a/b" {}', [(("path", "a/b"), [])]),
        ("a { b = 1 c = -2.5 }", [(("a",), [(("b",), 1), (("c",), -2.5)])]),
        ("a = [1, true, [],]", [(("a",), [1, True, []])]),
        ('a = { "x" = [] "*" = ["y"] }', [(("a",), [(("x",), []), (("*",), ["y"])])]),
        ("a = { b = 1, c = 2 }", [(("a",), [(("b",), 1), (("c",), 2)])]),
        (r'a = "q\"\n\x41\u00e9"', [(("a",), 'q"\nA\u00e9')]),
        ("a = [0x1F, -0x2]", [(("a",), [31, -2])]),
        (r'a = "\U0010ffff\U00110000\ud800"', [(("a",), "\U0010ffff\ufffd\ufffd")]),
        ("a = <<EOT\n  one\ntwo\nEOT\n", [(("a",), "  one\ntwo\n")]),
        ("a = <<EOT\n  one\n    two\nEOT\n", [(("a",), "  one\n    two\n")]),
        ("a = <<-EOT\n  one\n    two\n  EOT\n", [(("a",), "one\n  two\n")]),
        ('{"a": {"b": [1, null]}}', [(("a",), [(("b",), [1, None])])]),
    ],
)
def test_text_is_parsed_into_a_tree(text: str, tree: object) -> None:
    assert plain(parse_policy_text(text)) == tree


@pytest.mark.parametrize(
    "text",
    [
        'path "x" { c = 1 }',
        '{"path": {"x": {"c": 1}}}',
        '{"path": [{"x": {"c": 1}}]}',
        '{"path": {"x": [{"c": 1}]}}',
    ],
)
def test_block_is_found_in_any_notation(text: str) -> None:
    ((label, body),) = parse_policy_text(text).blocks("path")
    assert label == "x"
    assert plain(body) == [(("c",), 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope {", "At 1:8: object expected closing RBRACE got: EOF"),
        ('path "x" {', "At 1:12: object expected closing RBRACE got: EOF"),
        ("a { b = 1; c = 2 }", "At 1:10: illegal char"),
        ("a = %", "At 1:5: illegal char"),
        ("a = [1", "At 1:8: error parsing list, expected comma or list end, got: EOF"),
        ("a = [1 2]", "At 1:8: error parsing list, expected comma or list end"),
        ("a = ", "At 1:6: expected a value got: EOF"),
        ("\n  ? = 1", "At 2:3: illegal char"),
        ("a", "At 1:3: expected start of object ('{') or assignment ('=')"),
        ("a = b", "At 1:5: expected a value, got 'b'"),
        ("a = bc", "At 1:5: expected a value, got 'b'"),
        ("a = <<X\nb\n", "At 3:2: heredoc not terminated"),
        ("{", "the policy is not valid JSON: Input data was truncated"),
        ("{}x", "the policy is not valid JSON: JSON is malformed: trailing characters (byte 3)"),
    ],
)
def test_syntax_error_is_reported_with_its_position(text: str, message: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_policy_text(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "a=" + "[" * (MAX_DEPTH + 1),
        "a {" * (MAX_DEPTH + 1),
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        '{"a":' + "[" * 5000 + "]" * 5000 + "}",
        "#" * (MAX_TEXT + 1),
    ],
)
def test_deeply_nested_or_oversized_input_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_policy_text(text)


@pytest.mark.parametrize(
    ("begin", "core", "end", "levels"),
    [
        ("a {", "", "}", MAX_DEPTH),
        ("[", "", "]", MAX_DEPTH),
        ('{"a":', "1", "}", MAX_DEPTH - 1),
    ],
)
def test_depth_of_a_policy_is_limited_exactly(begin: str, core: str, end: str, levels: int) -> None:
    prefix = "a = " if begin == "[" else ""
    parse_policy_text(f"{prefix}{begin * levels}{core}{end * levels}")
    with pytest.raises(Malformed, match=f"nested more than {MAX_DEPTH} levels deep"):
        parse_policy_text(f"{prefix}{begin * (levels + 1)}{core}{end * (levels + 1)}")


def test_depth_is_counted_anew_for_each_value() -> None:
    parse_policy_text("a = [[]]\n" * (MAX_DEPTH + 1))


def test_long_text_is_parsed_in_linear_time() -> None:
    text = "a = <<E\n" + "line\n" * 50_000 + "E\n" + 'path "x" { c = 1 }\n' * 10_000
    assert len(parse_policy_text(text).items) == 10_001
