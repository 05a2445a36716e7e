"""The language of templates, by tables: the output is that of Go's text/template."""

import pytest

from daemon.templates.errors import TemplateError, TemplateOutputTooLong
from daemon.templates.render import read, render

DATA = '{{ $d := parseJSON `{"n": 3, "f": 1.5, "s": "hi", "l": ["a","b"], "m": {"x": "1", "k": "2"}, "e": [], "z": null}` }}'


def write(source: str, **fields: object) -> str:
    strict, steps = bool(fields.get("strict")), int(str(fields.get("steps", 500_000)))
    return render(read(source), {}, {"HOME": "/h"}, now=0, strict=strict, steps=steps).text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", ""),
        ("plain { text }", "plain { text }"),
        ("{{ 1 }}{{ 1.5 }}{{ true }}{{ `a\\n` }}", "11.5truea\\n"),
        ('{{ "a\\tb\\u00e9\\x41" }}', "a\tb\u00e9A"),
        (
            "{{ 'a' }} {{ 0x1f }} {{ 0644 }} {{ -5 }} {{ 1_000 }} {{ 1e3 }}",
            "97 31 420 -5 1000 1000",
        ),
        ("a  {{- 1 -}}  b", "a1b"),
        ("a {{- /* note */ -}} b", "ab"),
        ("a {{/* {{ 1 }} */}}b", "a b"),
        ("a\n{{- if true }} x {{- end }}\nb", "a x\nb"),
        ("{{ nil | not }}", "true"),
    ],
)
def test_text_and_constants(source: str, text: str) -> None:
    assert write(source) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ if $d.l }}yes{{ else }}no{{ end }}", "yes"),
        ("{{ if $d.e }}yes{{ else }}no{{ end }}", "no"),
        ("{{ if $d.z }}a{{ else if eq $d.n 3 }}b{{ else }}c{{ end }}", "b"),
        ("{{ with $d.s }}{{ . }}{{ end }}", "hi"),
        ("{{ with $d.e }}{{ . }}{{ else }}none{{ end }}", "none"),
        ("{{ with $d.e }}a{{ else with $d.m }}{{ .x }}{{ else }}b{{ end }}", "1"),
        ("{{ with $x := $d.m }}{{ $x.x }}{{ .k }}{{ end }}", "12"),
        ("{{ range $d.l }}<{{ . }}>{{ end }}", "<a><b>"),
        ("{{ range $i, $v := $d.l }}{{ $i }}={{ $v }} {{ end }}", "0=a 1=b "),
        ("{{ range $k, $v := $d.m }}{{ $k }}={{ $v }} {{ end }}", "k=2 x=1 "),
        ("{{ range $d.e }}x{{ else }}none{{ end }}", "none"),
        ("{{ range $v := $d.l }}{{ $v }}{{ end }}", "ab"),
        ("{{ range 3 }}{{ . }}{{ end }}", "012"),
        ("{{ range loop 5 }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}", "012"),
        ("{{ range loop 4 }}{{ if eq . 1 }}{{ continue }}{{ end }}{{ . }}{{ end }}", "023"),
        ("{{ $x := 1 }}{{ range loop 3 }}{{ $x = add $x 1 }}{{ end }}{{ $x }}", "4"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
        ("{{ range $d.l }}{{ $ }}{{ end }}", "<no value><no value>"),
        ("{{ define `t` }}[{{ . }}]{{ end }}{{ template `t` 5 }}{{ template `t` }}", "[5][<no value>]"),
        ("{{ block `b` 7 }}<{{ . }}>{{ end }}{{ template `b` 8 }}", "<7><8>"),
        ("{{ define `r` }}{{ if . }}{{ . }}{{ template `r` subtract 1 . }}{{ end }}{{ end }}{{ template `r` 3 }}", "321"),
    ],
)  # fmt: skip
def test_blocks(source: str, text: str) -> None:
    assert write(DATA + source) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ $d.m.x }}{{ $d.n }}{{ $d.f }}", "131.5"),
        ("{{ $d.none }}", "<no value>"),
        ("{{ $d.l }} {{ $d.m }} {{ $d.e }} {{ $d.z }}", "[a b] map[k:2 x:1] [] <no value>"),
        ("{{ (index $d.l 1) | toUpper }}", "B"),
        ("{{ (parseJSON `{\"a\": {\"b\": 1}}`).a.b }}", "1"),
        ("{{ index $d.m `x` }}{{ index $d `l` 0 }}", "1a"),
        ("{{ len $d.l }}{{ len $d.m }}{{ len `h\u00e9` }}", "223"),
        ("{{ slice $d.s 1 }}{{ slice $d.l 0 1 }}{{ slice $d.s }}", "i[a]hi"),
        ("{{ and 1 0 2 }}{{ and 1 2 }}{{ or 0 `` 3 }}{{ or 0 false }}", "023false"),
        ("{{ and false (index $d.l 99) }}", "false"),
        ("{{ eq 1 1 }}{{ eq `a` `b` `a` }}{{ eq 1 1.0 }}{{ ne 1 2 }}", "truetruetruetrue"),
        ("{{ lt 1 2 }}{{ le 2 2 }}{{ gt `b` `a` }}{{ ge 1 2 }}", "truetruetruefalse"),
        ("{{ print 1 2 `x` 3 nil }}|{{ println 1 `a` }}", "1 2x3 <nil>|1 a\n"),
        ("{{ html `<a href=\"x\">&'` }}", "&lt;a href=&#34;x&#34;&gt;&amp;&#39;"),
        ("{{ urlquery `a b&c/d` }}", "a+b%26c%2Fd"),
        ("{{ 5 | printf `%03d|%s` 7 }}", "007|%!s(int=5)"),
        ("{{ `x` | printf `%-4s|%4s|%q` `ab` `c` }}", 'ab  |   c|"x"'),
        ("{{ printf `%d %x %X %o %b %c %t %v %%` 10 255 255 8 5 65 true $d.l }}", "10 ff FF 10 101 A true [a b] %"),
        ("{{ printf `%.2f %5.1f %e %g` 1.255 2.25 12345.678 0.5 }}", "1.25   2.2 1.234568e+04 0.5"),
        ("{{ printf `%d` `x` }} {{ printf `%d` }} {{ printf `a` 1 }}", "%!d(string=x) %!d(MISSING) a%!(EXTRA int=1)"),
        ("{{ printf `%+d %T %5t|%.2s` 3 `a` true `abc` }}", "+3 string  true|ab"),
    ],
)  # fmt: skip
def test_go_values_and_functions(source: str, text: str) -> None:
    assert write(DATA + source) == text


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{", "line 1: unclosed action"),
        ("a\n{{ if true }}", 'line 2: unexpected end of the template: an "end" is missing'),
        ("{{ end }}", 'line 1: unexpected "end"'),
        ("\n{{ nope }}", 'line 2: function "nope" not defined'),
        ("{{ $x }}", 'line 1: undefined variable "$x"'),
        ("{{ 1 | 2 }}", "line 1: only a function can follow a |"),
        ("{{ ( 1 }}", "line 1: unclosed left paren"),
        ("{{ /* a }}", 'line 1: unexpected "/" in an action'),
        ("{{/* a }}", "line 1: unclosed comment"),
        ("{{ break }}", "line 1: break outside of a range"),
        ("{{ if }}x{{ end }}", "line 1: missing value for if"),
        ('{{ "a\\qb" }}', "line 1: bad escape \\q in a text"),
        ('{{ "\\ud800" }}', 'line 1: bad character in \'\\\\ud800\''),
        ("{{ 99999999999999999999 }}", "line 1: integer overflow: 99999999999999999999"),
        ("{{ template `x` }}", 'line 1: template "x" not defined'),
        ("{{ index (split `,` `a`) 4 }}", "line 1: error calling index: index out of range: 4"),
        ("{{ eq 1 `a` }}", "line 1: error calling eq: incompatible types for comparison"),
        ("{{ len }}", "line 1: wrong number of args for len: got 0"),
        ("{{ range 1.5 }}{{ end }}", "line 1: range can't iterate over float64"),
        ("{{ divide 0 1 }}", "line 1: error calling divide: division by zero"),
        ("{{ multiply 9223372036854775807 2 }}", "line 1: error calling multiply: the result is beyond 64 bits"),
        ("{{ (index (split `,` `a`) 0).x }}", "line 1: can't evaluate field x in type string"),
        ("{{ .x }}", "line 1: nil pointer evaluating interface {}.x"),
    ],
)  # fmt: skip
def test_error_is_reported_with_its_line(source: str, problem: str) -> None:
    with pytest.raises(TemplateError) as caught:
        write(source)
    assert str(caught.value) == problem


def test_missing_map_entry_is_an_error_if_configured() -> None:
    with pytest.raises(TemplateError, match='map has no entry for key "none"'):
        write(DATA + "{{ $d.none }}", strict=True)


def test_delimiters_can_be_changed() -> None:
    assert render(read("[[ 1 ]]{{ 2 }}", "[[", "]]"), {}, {}, now=0).text == "1{{ 2 }}"
    assert render(read("<% 1 %>", "<%", "%>"), {}, {}, now=0).text == "1"


@pytest.mark.parametrize(
    "source",
    [
        "{{ range loop 100000000 }}{{ end }}",
        "{{ range loop 10000 }}{{ range loop 10000 }}{{ end }}{{ end }}",
        "{{ define `a` }}{{ range loop 9 }}{{ template `a` }}{{ end }}{{ end }}{{ template `a` }}",
        "{{ range loop 99999 }}x{{ printf `%900d` 1 }}{{ end }}",
        "{{ $x := `aaaaaaaa` }}{{ range loop 99 }}{{ $x = print $x $x }}{{ end }}",
        "{{ printf `%99999999d` 1 }}",
        "{{ indent 99999999 `a` }}",
        "{{ $x := printf `%900d` 1 }}{{ range loop 99 }}{{ $x = replaceAll ` ` `          ` $x }}{{ end }}",
        "{{ range loop 999999 }}{{ $y := regexReplaceAll `(a*)*b` `x` (printf `%900d` 1) }}{{ end }}",
        "{{ range loop 99999 }}{{ $y := split `` (printf `%900d` 1) }}{{ end }}",
        "{{ loop 999999999 | toJSON }}",
        "{{ in (loop 9000000000000000000) 3 }}",
        "{{ join `,` (loop 9000000000000000000) }}",
        "{{ len (loop -9000000000000000000 9000000000000000000) }}",
        "{{ $x := indent 999999 `a` }}{{ range loop 9999 }}{{ $y := len $x }}{{ end }}",
        "{{ $x := indent 999999 `a` }}{{ range loop 9999 }}{{ $y := split `b` $x }}{{ end }}",
        f"{'{{ $a := 1 }}' * 20000}{{{{ range loop 10000 }}}}{{{{ $ }}}}{{{{ end }}}}",
        "{{ range loop 99999 }}{{ $z := toYAML (loop 9999) }}{{ end }}",
        f"{'{{ if 1 }}' * 100}{'{{ end }}' * 100}",
        f"{{{{ {'(' * 200} 1 {')' * 200} }}}}",
        f"{{{{ parseJSON `{'[' * 5000}{']' * 5000}` }}}}",
        f"{{{{ parseJSON `[{'1.5e300,' * 1000}1]` }}}}",
        "{{ range $i, $v := loop 9999 }}{{ nomadVarExists (print $v) }}{{ end }}",
    ],
)  # fmt: skip
def test_a_hostile_template_ends_with_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        write(source)


def test_steps_are_counted() -> None:
    assert write("{{ range loop 10 }}.{{ end }}", steps=100) == "." * 10
    with pytest.raises(TemplateOutputTooLong, match="the template takes more than 100 steps"):
        write("{{ range loop 1000 }}.{{ end }}", steps=100)
