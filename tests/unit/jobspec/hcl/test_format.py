"""The canonical form: the layout changes, the meaning does not."""

import json
from pathlib import Path

import pytest

from daemon.jobspec.hcl.format import formatted
from daemon.jobspec.hcl.source import HclError, SourceText
from tests.unit.jobspec.hcl.build import parse

GOLDEN = Path(__file__).parents[3] / "wire/golden/hcl"
ACCEPTED = [
    path
    for path in sorted(GOLDEN.glob("*.hcl"))
    if json.loads(path.with_suffix(".response.json").read_text())["status"] == 200
    and path.stem != "affinity-weight-range"  # refused on purpose
    and not path.read_text().lstrip().startswith("{")
]


def canonical(text: str) -> str:
    return formatted(SourceText("x", text))


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("", ""),
        ("\n\n", ""),
        ("a=1", "a = 1\n"),
        ("a=1\nbbb=2\n\nc=3\n", "a   = 1\nbbb = 2\n\nc = 3\n"),
        ("a = 1 # one\nbb = 22 // two\n", "a  = 1  # one\nbb = 22 // two\n"),
        ("   # alone\na = 1\n", "# alone\na = 1\n"),
        ("b{\na=1\n}\n", "b {\n  a = 1\n}\n"),
        ('b   "x"   "y"{}', 'b "x" "y" {}\n'),
        ("b { a=1 }\n", "b { a = 1 }\n"),
        ("a = [1,2 , 3]\n", "a = [1, 2, 3]\n"),
        ("a = [\n1,\n2\n]\n", "a = [\n  1,\n  2\n]\n"),
        ("a = f([{\nb=1\n}])\n", "a = f([{\n  b = 1\n}])\n"),
        ("a = {b=1,c=2}\n", "a = { b = 1, c = 2 }\n"),
        ("long = {\nb=1\n}\nc = 2\n", "long = {\n  b = 1\n}\nc = 2\n"),
        ("a = -1+ - 2*-3\n", "a = -1 + -2 * -3\n"),
        ("a = !b&&c||d==e\n", "a = !b && c || d == e\n"),
        ("a = b?c:d\n", "a = b ? c : d\n"),
        ("a = x . y [ 0 ] [ * ] . z\n", "a = x.y[0][*].z\n"),
        ("a = f( x ,g( y ) ... )\n", "a = f(x, g(y)...)\n"),
        ("a = [for x in y:x if(z)]\n", "a = [for x in y : x if (z)]\n"),
        ("a = {for k,v in y:k=>v...}\n", "a = { for k, v in y : k => v... }\n"),
        ('a = "${ x }  ${y}"\n', 'a = "${ x }  ${y}"\n'),
        ("aa = <<E\n  as it is\nE\nb = 1\n", "aa = <<E\n  as it is\nE\nb = 1\n"),
        ("b {\n aa = <<-E\n    ${ x }\n  E\n}\n", "b {\n  aa = <<-E\n    ${ x }\n  E\n}\n"),
        ("a = 1 /* so */ + 2\n", "a = 1 /* so */ + 2\n"),
        ("a = 1\r\nb = 2\r\n", "a = 1\nb = 2\n"),
        ("größe = 1\na = 2\n", "größe = 1\na     = 2\n"),
    ],
)
def test_text_has_one_canonical_form(written: str, form: str) -> None:
    assert canonical(written) == form
    assert canonical(form) == form


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_formatted_job_file_is_equivalent(path: Path) -> None:
    text = path.read_bytes().decode()
    request = json.loads(path.with_suffix(".request.json").read_text())
    variables = request.get("Variables", "")
    form = canonical(text)
    assert canonical(form) == form
    assert parse(form, variables=variables) == parse(text, variables=variables)


def test_unreadable_text_cannot_be_formatted() -> None:
    with pytest.raises(HclError, match="Invalid character"):
        canonical("a = @\n")
