"""Parsers of untrusted texts, each with sample texts and the permitted results.

A target accepts a text, or refuses it with the one type of error that it declares. Any other
exception is a finding, and so is an `AssertionError` of this module.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from daemon.acl import policy_rules
from daemon.config.loading import load_settings
from daemon.config.settings import FIELDS
from daemon.identity import jwt_signing, jwt_verification, keypair
from daemon.jobs.register import JobRegisterRequest
from daemon.jobspec import cron
from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.complete import complete
from daemon.jobspec.filter import compile_filter
from daemon.jobspec.filters.policy_rule import PolicyFilter
from daemon.jobspec.hcl.format import formatted
from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.hcl.source import HclError, SourceText
from daemon.jobspec.parse import JobFile, parse_job
from daemon.jobspec.validate import validate
from daemon.templates.errors import TemplateError
from daemon.templates.render import read, render
from storage.errors import Invalid, Malformed, Refused
from storage.records.base import SECOND
from storage.records.codec import decode, encode
from storage.records.job import Job
from tests.fuzz.texts import texts
from tests.fuzz.tokens import KEYS, genuine, tokens
from tests.samples import NOW, group, job, task
from tests.unit.identity import tokens as samples

GOLDEN = Path(__file__).parent.parent / "wire/golden"


class Target(NamedTuple):
    """A parser to test: a source of texts, and a function that parses one text."""

    texts: Callable[[int, int], Iterator[str]]  # arguments: the seed, and the number of texts
    look: Callable[[str], bool]  # returns whether the text was accepted


def sent(given: Iterator[str]) -> Iterator[str]:
    """Yield texts as they arrive in JSON or in a query, where half a surrogate pair becomes `?`."""
    return (text.encode(errors="replace").decode() for text in given)


# ---- job files ------------------------------------------------------------------------------------


@cache
def job_files() -> list[str]:
    """Return valid job files, and a job file for each recorded expression."""
    files = [path.read_bytes().decode() for path in sorted(GOLDEN.glob("hcl/*.hcl"))]
    listed = json.loads((GOLDEN / "hcl/expressions.json").read_text())
    return files + [
        f"{listed['before']}{case['expr']}{listed['after']}" for case in listed["cases"]
    ]


def of_hcl(seed: int, count: int) -> Iterator[str]:
    return texts(seed, count, job_files())


def _check_places(faulty: HclError) -> None:
    encode(faulty.explained())
    assert faulty.diagnostics
    for diagnostic in faulty.diagnostics:
        assert not diagnostic.source or 0 <= diagnostic.start <= diagnostic.end <= len(
            diagnostic.source.text
        )


def job_file(text: str, *, is_v1: bool = False) -> bool:
    try:
        found = complete(
            parse_job(JobFile(text=text, is_v1=is_v1), FunctionEnvironment(random=bytes))
        )
    except HclError as error:
        _check_places(error)
        return False
    try:
        registered = decode(JobRegisterRequest, encode({"Job": found}))
        validate(canonicalize(registered.job or {}))
    except Malformed:
        return False
    return True


@cache
def submitted() -> list[str]:
    """Return the job registrations of the recorded scenarios."""
    steps = (
        step.get("request", {}).get("body")
        for path in sorted(GOLDEN.glob("jobs/*.json"))
        for step in json.loads(path.read_text()).get("steps", ())
    )
    return sorted({json.dumps(step) for step in steps if isinstance(step, dict) and "Job" in step})


_OF_JSON = (
    *("null", "true", "{}", "[]", "[null]", '{"": null}', '""', '"a"', "-1", "1.5", "1e999", ","),
    *("9223372036854775808", "{", "}", "[", "]", ":", '"Count": ', '"Tasks": [null]', '"web"', "0"),
)


def of_jobs(seed: int, count: int) -> Iterator[str]:
    """Yield recorded registrations, in which some values or parts of the JSON text are changed."""
    chance = random.Random(seed)
    changed = texts(seed, count, submitted(), _OF_JSON)
    for text in changed:
        if chance.random() < 0.4:
            yield text
            continue
        document = json.loads(chance.choice(submitted()))
        for _ in range(chance.randint(1, 3)):
            _change(document, chance)
        yield json.dumps(document)


_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 1.5, 2**31, 2**63 - 1, 2**64, "", "a", "\x00", "*", [], {}, [None]),
    *({"": None}, {"a": None}, [{}], [[]], "1h", "${a}", "x" * 300, {"a": {"b": [1]}}),
)


def _change(value: Any, rng: random.Random) -> None:
    """Replace a random value in a document."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            value[key] = deepcopy(rng.choice(_VALUES))
            return
        value = inner


def registration(text: str) -> bool:
    try:
        found = decode(JobRegisterRequest, text.encode(errors="surrogatepass")).job
        made = canonicalize(found or {})
    except Malformed:
        return False
    encode(made)
    return not validate(made).errors


_WITH_VARIABLES = (
    'variable "a" {}\nvariable "b" {\n  type = list(string)\n}\njob "x" {\n  name = var.a\n}\n'
)


def variables(text: str) -> bool:
    given = JobFile(text=_WITH_VARIABLES, variable_files=(("vars", text),), flags={"b": text})
    try:
        encode(complete(parse_job(given, FunctionEnvironment(random=bytes))))
    except HclError as error:
        encode(error.explained())
        return False
    return True


def form(text: str) -> bool:
    try:
        found = formatted(SourceText("x", text))
    except HclError:
        return False
    assert formatted(SourceText("x", found)) == found
    return True


# ---- filters --------------------------------------------------------------------------------------

_EXPRESSIONS = (
    *("ID == web", 'Status == "running" and (Meta.team contains ops or not ID matches `^test-`)'),
    *("TaskGroups.0.Tasks.0.Config.command is not empty", '"a" in Datacenters', "Meta is empty"),
    *("any TaskGroups as group { group.Count == 0 }", "Meta.team is nil", "not Priority != 50"),
    *("all TaskGroups.Tasks as task { task.Resources.MemoryMB <= 4096 }", "Meta[`a.b`] == x"),
    *("any Meta as key, value { key == team and value matches `.*` }", 'ID matches "(?i)^[a-z]+$"'),
    *('"/Meta/team" == ops', "all Datacenters as _, dc { dc contains `*` }", "Version > 1.5"),
)
_OF_FILTERS = (
    *("==", "!=", "<=", "<", ">=", ">", " in ", " not in ", " contains ", " matches ", " is "),
    *("empty", "nil", " and ", " or ", "not ", "any ", "all ", " as ", "{", "}", "(", ")", "_"),
    *("ID", "Meta", ".", "[", "]", '"', "`", ", ", "TaskGroups", "Tasks", "0", "50", "true", "/"),
    *("Datacenters", "Priority", "Periodic", "Constraints", "a{1000}{1000}", "(?P<x>", "\\", "~1"),
)


@cache
def document() -> Any:
    whole = group("web", task(env={"A": "1"}), task("side"), count=2)
    return msgspec.to_builtins(job("web", whole, group("db"), meta={"team": "ops", "a.b": "x"}))


def of_filters(seed: int, count: int) -> Iterator[str]:
    return sent(texts(seed, count, _EXPRESSIONS, _OF_FILTERS))


def expression(text: str) -> bool:
    try:
        return isinstance(compile_filter(text, Job)(document()), bool)
    except Malformed:
        return False


def rule(text: str) -> bool:
    try:
        return isinstance(PolicyFilter(text, Job).matches(document()), bool)
    except Malformed:
        return False


# ---- schedules -----------------------------------------------------------------------------------

_CLOCKS = (
    *("* * * * *", "*/5 * * * *", "0 0 1 1 *", "@daily", "0 0 L * *", "0 0 LW * *", "0 0 15W * *"),
    *(
        "0 0 * * 5L",
        "0 0 * * 2#3",
        "30 2 * 3,10,11 sun",
        "0 0 29 2 * 2096",
        "1-5,7 */2 ? jan-mar mon",
    ),
    *("*/15 * * * * * *", "0 0 0 31 2 * 2099", "59 59 23 31 12 ? 2099", "0 2 * * 7", "0 0 31 4 *"),
)
_OF_CLOCKS = (
    *(" ", "*", "?", "/", "-", ",", "#", "L", "W", "LW", "@", "@daily", "@every 1s", "0", "1", "7"),
    *(
        "23",
        "59",
        "60",
        "31",
        "12",
        "2099",
        "1970",
        "mon",
        "sunday",
        "jan",
        "december",
        "feb",
        "00",
    ),
)
_ZONES = (
    *("UTC", "", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"),
    *("America/Sao_Paulo", "Africa/Casablanca", "Antarctica/Troll", "Asia/Kathmandu", "no/zone"),
)
_MOMENTS = (0, 1_700_000_000, 1_711_846_799, 1_729_990_800, NOW // SECOND, 4_102_444_799, 2**33)


def of_clocks(seed: int, count: int) -> Iterator[str]:
    chance = random.Random(seed)
    for text in texts(seed, count, _CLOCKS, _OF_CLOCKS):
        yield f"{chance.choice(_ZONES)}|{chance.choice(_MOMENTS) + chance.randint(0, 10**7)}|{text}"


def clock(text: str) -> bool:
    zone, moment, spec = text.split("|", 2)
    after = int(moment) * SECOND
    try:
        found = cron.next_after(spec, after, cron.zone(zone))
    except Invalid:
        return False
    assert found is None or found > after
    return True


def of_tokens(seed: int, count: int) -> Iterator[str]:
    return sent(tokens(seed, count))


# ---- tokens ---------------------------------------------------------------------------------------


def directory_token(text: str) -> bool:
    try:
        token = jwt_verification.parse_jwt(text)
        jwt_verification.verify_signature(token, KEYS)
        jwt_verification.check_standard(
            token, issuer=samples.ISSUER, audience=samples.AUDIENCE, now=samples.NOW
        )
        encode(jwt_verification.read_claims(token))
    except Refused:
        return False
    assert text.strip() in genuine(), "a forged token was accepted"
    return True


def own_token(text: str) -> bool:
    """Verify a token as one of Steward's tokens for tasks."""
    try:
        key = keypair.public("one", samples.KEY)
        encode(jwt_signing.read(text, [key], samples.AUDIENCE, samples.NOW))
    except jwt_signing.InvalidToken:
        return False
    assert text.strip() in genuine(), "a forged token was accepted"
    return True


# ---- settings -------------------------------------------------------------------------------------

_OF_SETTINGS = (
    *(*(f"{name} = " for name in FIELDS), "= ", "[", "]", "{", "}", ",", "\n", '"', "'", "true"),
    *("false", "0", "-1", "1", "65536", "1.5", "nan", "1979-05-27", '"127.0.0.1"', '"~nobody/x"'),
    *('"::"', '"/tmp"', '"a\\u0000b"', '""', "[[host_volumes]]\n", "[[job_policies]]\n", '["a"]'),
    *("[[host_networks]]\n", 'name = "a"\n', 'path = "/srv"\n', 'cidr = "10.0.0.0/8"\n', '"x"\n'),
    *('rule = "ID == a"\n', "{ a = 1 }", "[notify_commands]\n", 'a = ["/bin/true"]\n', "# x\n"),
)
_SETTINGS = tuple(
    f"{name} = {value}\n"
    for name in FIELDS
    for value in ('"x"', "1", "true", '["a"]', '{ a = "b" }', '[{ name = "a", path = "/srv" }]')
)


def of_settings(seed: int, count: int) -> Iterator[str]:
    return texts(seed, count, _SETTINGS, _OF_SETTINGS)


def settings(text: str) -> bool:
    with tempfile.NamedTemporaryFile("wb", suffix=".toml") as file:
        file.write(text.encode(errors="surrogatepass"))
        file.flush()
        return _loaded(Path(file.name), {})


def environment(text: str) -> bool:
    """Read the lines of a text as environment variables."""
    pairs = [line.partition("=") for line in text.replace("\x00", "").splitlines()]
    given = {f"STEWARD_{name.strip().upper()}": value for name, _, value in pairs}
    return _loaded(Path("/dev/null"), given)


def _loaded(file: Path, given: dict[str, str]) -> bool:
    try:
        load_settings(file, given, {})
    except Invalid:
        return False
    return True


# ---- policies and templates -----------------------------------------------------------------------

_POLICIES = (
    'namespace "default" {\n  policy = "read"\n  capabilities = ["submit-job"]\n}\n',
    'path "secret/+/x*" {\n  capabilities = ["read", "list"]\n  min_wrapping_ttl = "1m"\n}\n',
    'namespace "*" {\n  variables {\n    path "a/*" {\n      capabilities = ["write"]\n    }\n  }\n}\n',
    '{"path": {"auth/*": {"capabilities": ["sudo"], "allowed_parameters": {"a": [1, "b"]}}}}',
    'agent { policy = "write" }\nnode { policy = "deny" }\nnode_pool "x" { policy = "read" }\n',
)
_OF_POLICIES = (
    *("namespace ", "path ", "variables ", "agent ", "node_pool ", "policy = ", "capabilities = ["),
    *('"read"', '"deny"', '"*"', "{", "}", "[", "]", "=", ",", "<<EOT\n", "EOT\n", "#", "/*", "*/"),
    *("1", "1.5e3", "true", "{{identity.entity.name}}", '"+*"', "min_wrapping_ttl = ", ":", "\n"),
)
_TEMPLATES = (
    '{{ $d := parseJSON `{"l": ["a", "b"], "m": {"x": 1}}` }}{{ range $i, $v := $d.l }}{{ $i }}{{ end }}',
    '{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" 5 }}{{ with env "HOME" }}{{ . }}{{ end }}',
    '{{ if and true (eq 1 1) }}{{ printf "%05.2f|%-5s|%q|%x" 1.5 "a" "b" 255 }}{{ else }}x{{ end }}',
    '{{ range loop 5 }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}{{- "a" | toUpper -}}',
    '{{ with nomadVar "a/b" }}{{ .k }}{{ end }}{{ range nomadService "web" }}{{ .Address }}{{ end }}',
)
_OF_TEMPLATES = (
    *("{{", "}}", "{{- ", " -}}", "if ", "else", "end", "range ", "with ", "define ", "template "),
    *("block ", "break", "continue", "$x", ":=", "=", "|", "(", ")", ".", ".a", "nil", "true", "1"),
    *(
        '"a"',
        "`a`",
        "'a'",
        "0x1p-2",
        "1e999",
        "len ",
        "index ",
        "slice ",
        "printf ",
        "loop ",
        "add ",
    ),
    *("multiply ", "parseJSON ", "parseYAML ", "regexReplaceAll ", "env ", "key ", "base64Decode "),
    *("toJSON ", "split ", "timestamp ", "/*", "*/", "eq ", "lt ", "and ", "html ", "js ", "%"),
)


def of_policies(seed: int, count: int) -> Iterator[str]:
    return sent(texts(seed, count, _POLICIES, _OF_POLICIES))


def policy(text: str) -> bool:
    try:
        policy_rules.parse_policy(text)
    except Malformed:
        return False
    return True


def of_templates(seed: int, count: int) -> Iterator[str]:
    return sent(texts(seed, count, _TEMPLATES, _OF_TEMPLATES))


def template(text: str) -> bool:
    try:
        render(read(text), {}, {"HOME": "/h"}, now=0, steps=20_000)
    except TemplateError:
        return False
    return True


TARGETS = {
    "job files": Target(of_hcl, job_file),
    "job files of version 1": Target(of_hcl, partial(job_file, is_v1=True)),
    "values of variables": Target(of_hcl, variables),
    "forms of job files": Target(of_hcl, form),
    "jobs": Target(of_jobs, registration),
    "filters": Target(of_filters, expression),
    "rules of job policies": Target(of_filters, rule),
    "cron": Target(of_clocks, clock),
    "tokens of a directory": Target(of_tokens, directory_token),
    "tokens of our own": Target(of_tokens, own_token),
    "settings in a file": Target(of_settings, settings),
    "settings in variables": Target(of_settings, environment),
    "policies": Target(of_policies, policy),
    "templates": Target(of_templates, template),
}
