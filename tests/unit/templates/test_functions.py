"""Template functions in addition to Go's, by tables, and the lookups of templates."""

import hmac
import json
import tomllib

import pytest

from daemon.templates.errors import TemplateError, TemplateOutputTooLong
from daemon.templates.lookups import (
    LookupKey,
    LookupType,
    ServiceInstance,
    ServiceStub,
    VariableStub,
)
from daemon.templates.render import RenderResult, read, render, syntax_error
from daemon.templates.values import StringMap

NOW = 1_136_214_245_000_000_000  # 2006-01-02T15:04:05Z


def write(source: str, **environment: str) -> str:
    return render(read(source), {}, environment, now=NOW).text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ split `,` `a,b` | join `-` }}", "a-b"),
        ("{{ `a.b.c` | replaceAll `.` `/` }}", "a/b/c"),
        ("{{ `foo-12` | regexMatch `[0-9]+$` }}", "true"),
        ("{{ `foo-12` | regexReplaceAll `([a-z]+)-` `${1}_` }}", "foo_12"),
        ("{{ toUpper `ab` }}{{ toLower `AB` }}{{ toTitle `hello big-world` }}", "ABabHello Big-World"),
        ("{{ trimSpace ` a ` }}{{ trimPrefix `a` `ab` }}{{ `ab` | trimSuffix `b` }}", "aba"),
        ("{{ if `b` | in (split `,` `a,b`) }}x{{ end }}", "x"),
        ("{{ if contains `b` (split `,` `a,b`) }}in{{ end }}{{ if in `abc` `b` }}in{{ end }}", "inin"),
        ("{{ range loop 2 }}{{ . }}{{ end }}{{ range loop 5 7 }}{{ . }}{{ end }}", "0156"),
        ("{{ add 1 2 }}{{ 5 | subtract 2 }}{{ multiply 2 3 }}{{ 9 | divide 2 }}{{ 9 | modulo 4 }}", "33641"),
        ("{{ -7 | divide 2 }} {{ -7 | modulo 2 }} {{ 1.5 | multiply 2 }} {{ 1 | divide 2.0 }}", "-3 -1 3 0.5"),
        ("{{ parseInt `-12` }}{{ parseInt `` }} {{ parseBool `true` }}{{ parseBool `0` }}", "-120 truefalse"),
        ("{{ base64Encode `hi` }} {{ base64Decode `aGk=` }}", "aGk= hi"),
        ("{{ sha256Hex `a` }}", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ("{{ md5sum `a` }}", "0cc175b9c0f1b6a831c399e269772661"),
        ("{{ indent 2 `a\nb` }}", "  a\n  b"),
        ("{{ `xabx` | trim `x` }}{{ trim `ab` `abcba` }}", "abc"),
        ("{{ parseUint `7` }}{{ parseUint `` }} {{ parseFloat `-1.5` }} {{ parseFloat `1e3` }}", "70 -1.5 1000"),
        ("{{ 3 | maximum 2 }}{{ 3 | minimum 2 }}{{ maximum 1.5 1 }}", "321.5"),
        ("{{ base64URLEncode `??>` }} {{ base64URLDecode `Pz8-` }}", "Pz8- ??>"),
        ("{{ parseJSON `{\"a\": \"<\"}` | toUnescapedJSON }}", '{"a":"<"}'),
        ("{{ $l := split `,` `a,b` }}{{ containsAny (split `,` `b,c`) $l }} {{ containsAny (split `,` `c`) $l }}", "true false"),
        ("{{ $l := split `,` `a,b` }}{{ containsAll (split `,` `b,a`) $l }} {{ containsAll (split `,` `b,c`) $l }}", "true false"),
        ("{{ $l := split `,` `a,b` }}{{ containsNone (split `,` `c`) $l }} {{ containsNotAll (split `,` `b,c`) $l }}", "true true"),
        ("{{ mustEnv `A` }}", "1"),
        ("{{ parseJSON `{\"b\": [1, 2.5, null], \"a\": \"<\"}` | toJSON }}", '{"a":"\\u003c","b":[1,2.5,null]}'),
        ("{{ parseJSON `{\"a\": [1]}` | toJSONPretty }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ parseJSON `{\"a\": [1, \"yes\"], \"b\": null}` | toYAML }}", "a:\n- 1\n- 'yes'\nb: null"),
        ("{{ parseJSON `8080` }} {{ (parseJSON `{\"n\": 1234567}`).n }}", "8080 1234567"),
        ("{{ timestamp }} {{ timestamp `2006-01-02` }} {{ timestamp `unix` }}", "2006-01-02T15:04:05Z 2006-01-02 1136214245"),
        ("{{ env `A` }}-{{ env `B` }}-{{ envOrDefault `A` `x` }}{{ envOrDefault `B` `y` }}", "1--1y"),
    ],
)  # fmt: skip
def test_functions(source: str, text: str) -> None:
    assert write(source, A="1") == text


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ parseInt `x` }}", "error calling parseInt: 'x' is not a whole number"),
        ("{{ parseUint `-1` }}", "error calling parseUint: '-1' is not a whole number"),
        ("{{ parseFloat `x` }}", "error calling parseFloat: 'x' is not a number"),
        ("{{ mustEnv `NO` }}", "error calling mustEnv: the environment variable NO is not set"),
        ("{{ containsAny `a` (split `,` `a`) }}", "expected a list; got string"),
        ("{{ parseBool `x` }}", "error calling parseBool: 'x' is neither true nor false"),
        ("{{ base64Decode `*` }}", "error calling base64Decode: not base64"),
        ("{{ regexMatch `(` `a` }}", "error calling regexMatch: error parsing regexp"),
        ("{{ parseJSON `{` }}", "error calling parseJSON"),
        ("{{ toUpper 1 }}", "wrong type for value; expected string; got int"),
        ("{{ join `,` `a` }}", "expected a list; got string"),
        ("{{ indent -1 `a` }}", "indent value must be a positive integer"),
        ("{{ nomadService 1 `web` }}", "nomadService takes a name, or a number, a key and a name"),
    ],
)
def test_unsupported_operation_of_a_function_is_reported(source: str, problem: str) -> None:
    with pytest.raises(TemplateError) as caught:
        write(source)
    assert problem in str(caught.value)


def instance(number: int) -> ServiceInstance:
    return ServiceInstance(
        ID=f"id-{number}",
        Name="web",
        Node="n",
        Address="10.0.0.1",
        Datacenter="dc1",
        Tags=["a", "b"],
        JobID="j",
        AllocID="x",
        Port=8000 + number,
    )


WEB = LookupKey(LookupType.SERVICE, "web")
SECRET = LookupKey(LookupType.VARIABLE, "app/db")


def look_up(source: str, answers: dict[LookupKey, object]) -> RenderResult:
    return render(read(source), answers, {}, now=NOW)


def test_missing_lookups_of_a_template_are_requested() -> None:
    found = look_up("{{ range nomadService `web` }}x{{ end }}{{ nomadVarExists `app/db` }}", {})
    assert found.asked == {WEB, SECRET}
    assert found.missing == set()


def test_services_are_rendered_with_their_addresses() -> None:
    source = (
        "{{ range nomadService `web` }}{{ .Address }}:{{ .Port }} {{ .Tags | join `,` }};{{ end }}"
    )
    found = look_up(source, {WEB: [instance(1), instance(2)]})
    assert found.text == "10.0.0.1:8001 a,b;10.0.0.1:8002 a,b;"


def test_key_selects_the_same_instances_while_available() -> None:
    source = "{{ range nomadService 2 `me` `web` }}{{ .Port }} {{ end }}"
    all_of_them = [instance(number) for number in range(5)]
    chosen = look_up(source, {WEB: all_of_them}).text
    assert len(chosen.split()) == 2
    assert look_up(source, {WEB: [*reversed(all_of_them)]}).text == chosen


def test_all_services_have_names_and_tags() -> None:
    answers = {LookupKey(LookupType.SERVICES): [ServiceStub(Name="web", Tags=["a"])]}
    source = "{{ range nomadServices }}{{ .Name }}={{ .Tags | join `,` }}{{ end }}"
    assert look_up(source, answers).text == "web=a"


def test_a_variable_is_a_map_of_texts() -> None:
    source = (
        "{{ with nomadVar `app/db` }}{{ .user }}/{{ .none }}|{{ range .Tuples }}"
        "{{ .Key }}={{ .Value }} {{ end }}{{ .Keys | join `,` }}{{ end }}"
        "{{ range $k, $v := nomadVar `app/db` }}<{{ $k }}:{{ $v }}>{{ end }}"
    )
    found = look_up(source, {SECRET: StringMap(user="u", pass_="p")})
    assert found.text == "u/|pass_=p user=u pass_,user<pass_:p><user:u>"


def test_missing_variable_is_reported_as_missing() -> None:
    found = look_up("{{ with nomadVar `app/db` }}x{{ end }}", {SECRET: None})
    assert found.missing == {SECRET}
    assert str(SECRET) == "nomad.var.block(app/db)"
    assert look_up("{{ nomadVarExists `app/db` }}", {SECRET: None}).text == "false"
    assert look_up("{{ nomadVarExists `app/db` }}", {SECRET: None}).missing == set()


def variable(path: str) -> VariableStub:
    return VariableStub(
        Namespace="default", Path=path, CreateIndex=1, ModifyIndex=2, CreateTime=3, ModifyTime=4
    )


def test_safe_list_of_variables_is_the_same_list() -> None:
    stub = VariableStub(
        Namespace="default", Path="app/db", CreateIndex=1, ModifyIndex=1, CreateTime=0, ModifyTime=0
    )
    answers = {LookupKey(LookupType.VARIABLES, "app"): [stub]}
    program = read("{{ range nomadVarListSafe `app` }}{{ .Path }}{{ end }}")
    assert render(program, answers, {}, now=0).text == "app/db"


def test_variables_are_listed_below_a_prefix_or_all() -> None:
    source = (
        "{{ range nomadVarList `app` }}{{ .Path }}@{{ .Namespace }}={{ .ModifyIndex }} {{ end }}"
    )
    below = {LookupKey(LookupType.VARIABLES, "app"): [variable("app/a"), variable("app/b")]}
    assert look_up(source, below).text == "app/a@default=2 app/b@default=2 "
    every = {LookupKey(LookupType.VARIABLES): [variable("x")]}
    assert look_up("{{ range nomadVarList }}{{ .Path }}{{ end }}", every).text == "x"


def test_file_is_text_and_must_exist() -> None:
    data = LookupKey(LookupType.FILE, "local/data")
    assert look_up("{{ file `local/data` | toUpper }}", {data: "ab"}).text == "AB"
    assert look_up("{{ file `local/data` }}", {data: None}).missing == {data}


def test_a_search_counts_as_steps_of_the_template() -> None:
    text = "x" * 30_000
    assert write(f"{{{{ `{text}` | regexMatch `^x+$` }}}}") == "true"
    with pytest.raises(TemplateError, match="the template takes more than 500000 steps"):
        write(f"{{{{ `{text}` | regexMatch `x[^y]{{900}}z|x[^w]{{900}}q` }}}}")


NAMES = """
    env envOrDefault file nomadService nomadServices nomadVar nomadVarExists nomadVarList timestamp
    toJSON toJSONPretty toYAML parseJSON parseBool parseInt base64Encode base64Decode join split
    replaceAll regexMatch regexReplaceAll toUpper toLower toTitle trimSpace trimPrefix trimSuffix
    contains in loop add subtract multiply divide modulo sha256Hex md5sum indent
    printf index len and or not eq ne lt le gt ge slice print println html urlquery
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_every_name_used_in_job_files_is_known(name: str) -> None:
    with pytest.raises(TemplateError) as caught:
        write(f"{{{{ {name} | noSuchThing }}}}")
    assert str(caught.value) == 'line 1: function "noSuchThing" not defined'


@pytest.mark.parametrize(
    "use",
    ["range $m }}{{ break }}{{ end", "$k := $v.Keys", "$k := $v.Values", '$k := index $v "Tuples"'],
)
def test_each_order_of_a_map_counts_its_entries(use: str) -> None:
    items = StringMap({f"k{number}": "" for number in range(1000)})
    document = json.dumps(dict(items)).replace(" ", "")
    source = (
        f'{{{{ $m := parseJSON `{document}` }}}}{{{{ $v := nomadVar "v" }}}}'
        f"{{{{ range loop 1000 }}}}{{{{ {use} }}}}{{{{ end }}}}"
    )
    answers = {LookupKey(LookupType.VARIABLE, "v"): items}
    with pytest.raises(TemplateOutputTooLong):
        render(read(source), answers, {}, now=0)


@pytest.mark.parametrize("function", ["toJSON", "toJSONPretty"])
def test_number_that_json_does_not_have_is_an_error(function: str) -> None:
    with pytest.raises(TemplateError, match="json: unsupported value"):
        render(read(f"{{{{ multiply 1e308 10.0 | {function} }}}}"), {}, {}, now=0)


YAML = """a: &x [1, 0x10, 010, -2.5, yes, ~, "7", 2026-01-02]
b: *x
c: {<<: {k: v, own: no}, own: mine}
1: one
true: t
"""


def test_yaml_is_read_with_the_types_of_its_scalars() -> None:
    assert json.loads(write(f"{{{{ parseYAML `{YAML}` | toJSON }}}}")) == {
        "a": [1, 16, 8, -2.5, True, None, "7", "2026-01-02"],
        "b": [1, 16, 8, -2.5, True, None, "7", "2026-01-02"],
        "c": {"k": "v", "own": "mine"},
        "1": "one",
        "true": "t",
    }
    assert write("{{ (parseYAML `x: {y: [1, 2]}`).x.y }}{{ parseYAML `` | len }}") == "[1 2]0"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("a: [", "yaml: .*flow"),
        ("a: *x", "yaml: .*x"),
        ("[1]: x", "a key must be a text"),
        ("<<: 1", "map merge requires"),
        ("[" * 200, "nested more than 80 deep"),
        (f"a: {2**64}", "64"),
    ],
)
def test_unreadable_yaml_is_an_error(document: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason):
        write(f"{{{{ parseYAML `{document}` }}}}")


@pytest.mark.parametrize(
    "document",
    [
        # Each line repeats the line before it ten times.
        "\n".join(
            ["a0: &a0 [" + "x," * 9 + "x]"]
            + [
                f"a{number}: &a{number} [" + ",".join([f"*a{number - 1}"] * 10) + "]"
                for number in range(1, 9)
            ]
        ),
        "\n".join(
            ["- &a0 {k: v}"]
            + [
                f"- &a{number} {{<<: [" + ",".join([f"*a{number - 1}"] * 10) + "]}"
                for number in range(1, 9)
            ]
        ),
        "- x\n" * 100_000,
    ],
)
def test_cost_of_yaml_is_limited(document: str) -> None:
    with pytest.raises(TemplateOutputTooLong):
        write(f"{{{{ $x := parseYAML `{document}` }}}}")


@pytest.mark.parametrize("digits", ["1" * 5000, ":".join(["1"] * 20_000)])
def test_a_number_of_any_length_in_yaml_is_cheap(digits: str) -> None:
    assert write(f"{{{{ $x := parseYAML `{digits}` }}}}{{{{ len $x }}}}") == str(len(digits))


def test_a_map_is_written_as_toml() -> None:
    document = json.dumps(
        {
            "b": True,
            "name": 'a "b"\n',
            "n": None,
            "float": 1.5,
            "list": [1, {"k": "v"}],
            "table": {"x y": 1, "inner": {"z": []}},
            "rows": [{"a": 1}, {"a": 2}],
        }
    )
    assert write(f"{{{{ parseJSON `{document}` | toTOML }}}}").split("\n") == [
        "b = true",
        "float = 1.5",
        'list = [1, {k = "v"}]',
        'name = "a \\"b\\"\\n"',
        "",
        "[[rows]]",
        "  a = 1",
        "",
        "[[rows]]",
        "  a = 2",
        "",
        "[table]",
        '  "x y" = 1',
        "",
        "  [table.inner]",
        "    z = []",
    ]
    with pytest.raises(TemplateError, match="only a map can be the top level"):
        write("{{ toTOML 1 }}")
    with pytest.raises(TemplateError, match="a list cannot contain nil"):
        write('{{ parseJSON `{"a": [null]}` | toTOML }}')


def test_toml_can_be_read_again() -> None:
    document = {"a": {"b": {"c": [{"d": "\x7f\u0001ü\\"}]}}, "": {"x.y": -1}, "e": [[1], [2]]}
    source = "{{ parseJSON `" + json.dumps(document) + "` | toTOML }}"
    assert tomllib.loads(write(source)) == document


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('{{ parseJSON `["<"]` | toUnescapedJSONPretty }}', '[\n  "<"\n]'),
        (
            "{{ hmacSHA256Hex `text` `key` }}",
            hmac.new(b"key", b"text", "sha256").hexdigest(),
        ),
        ("{{ splitToMap `,` `:` `a:1,b:2:3,c` | toJSON }}", '{"a":"1","b":"2:3"}'),
        (
            '{{ parseJSON `{"a":{"x":1,"y":1,"e":1}}` | mergeMap (parseJSON `{"a":{"x":2,"e":""},"b":3}`) | toJSON }}',
            '{"a":{"e":1,"x":2,"y":1},"b":3}',
        ),
        (
            '{{ parseJSON `{"a":{"x":1}}` | mergeMapWithOverride (parseJSON `{"a":{"x":2,"y":2}}`) | toJSON }}',
            '{"a":{"x":1,"y":2}}',
        ),
        ("{{ env `NONE` | sprig_default `x` }}{{ `y` | sprig_default `x` }}", "xy"),
        ("{{ sprig_coalesce `` 0 `z` }}{{ true | sprig_ternary `a` `b` }}", "za"),
        (
            "{{ sprig_list 1 `a` | toJSON }}{{ sprig_dict `k` 1 `l` | toJSON }}",
            '[1,"a"]{"k":1,"l":""}',
        ),
        (
            "{{ `ab` | sprig_repeat 2 }}{{ `abc` | sprig_trunc 2 }}{{ `abc` | sprig_trunc -1 }}",
            "ababab" + "c",
        ),
        (
            "{{ `a` | sprig_nindent 2 }}{{ `a` | sprig_quote }}{{ `a` | sprig_squote }}",
            "\n  a\"a\"'a'",
        ),
        ("{{ `a-b` | sprig_splitList `-` | sprig_join `+` }}", "a+b"),
        ("{{ `abc` | sprig_contains `b` }} {{ `abc` | sprig_hasPrefix `b` }}", "true false"),
        ("{{ `abc` | sprig_hasSuffix `c` }} {{ ` A ` | sprig_trim | sprig_lower }}", "true a"),
    ],
)
def test_further_functions(source: str, text: str) -> None:
    assert write(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ `x` | sprig_repeat 2000000 }}",
        "{{ range loop 100000 }}{{ sprig_list 1 2 3 4 5 6 7 8 9 10 }}{{ end }}",
        "{{ $m := parseJSON `{MAP}` }}{{ range loop 1000 }}{{ $x := mergeMap $m $m }}{{ end }}",
    ],
)
def test_cost_of_further_functions_is_limited(source: str) -> None:
    document = json.dumps({str(number): 1 for number in range(1000)})
    with pytest.raises(TemplateError, match=r"more than (500000 steps|1048576 characters)"):
        write(source.replace("{MAP}", document))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{{ toYml 1 }}", ('line 1: function "toYml" not defined', "toYAML")),
        (
            "\n{{ regexreplaceall }}",
            ('line 2: function "regexreplaceall" not defined', "regexReplaceAll"),
        ),
        ("{{ qqqqqq }}", ('line 1: function "qqqqqq" not defined', "")),
        ("{{ env `A` }} text", ("", "")),
    ],
)
def test_unknown_function_has_a_nearest_name(source: str, found: tuple[str, str]) -> None:
    assert syntax_error(source) == found
