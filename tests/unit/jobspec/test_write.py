"""Jobs written as job files: parsing a written text returns the original job."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.jobspec.canonicalize import canonicalize, same_definition
from daemon.jobspec.complete import complete as complete_parsed
from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.parse import JobFile, parse_job
from daemon.jobspec.write import write_job
from storage.errors import StewardError
from storage.records.codec import Document
from storage.records.job import Job
from tests.unit.jobspec.build import complete, group, job, task
from tests.unit.jobspec.recorded import GOLDEN, document, scenarios, sent_job

# Jobs of the recorded requests that job files cannot describe: a `Spec` of an unknown type, a
# horizontal scaling policy of a task, an empty mesh proxy, and a name that HCL would normalize.
UNSAYABLE = {"periodic", "register-limits", "register-validation", "task-scaling-policies"}
REFUSED = (StewardError, msgspec.ValidationError)


def read(source: str) -> Job:
    """Return the complete job that a text describes, as a client would submit it."""
    parsed = complete_parsed(
        parse_job(JobFile(text=source), FunctionEnvironment(random=secrets.token_bytes))
    )
    return canonicalize(document(parsed))


def starts(job: Job) -> Job:
    """Return a job in the form of a submission that starts it."""
    return msgspec.structs.replace(job, stop=False)


def responses() -> Iterator[tuple[str, Any]]:
    for path in sorted((GOLDEN / "hcl").glob("*.response.json")):
        found = json.loads(path.read_text())
        body = found.get("body", found)
        if isinstance(body, dict) and "TaskGroups" in body:
            yield path.stem, body


def completed(given: Any) -> Job | None:
    try:
        return canonicalize(document(given))
    except REFUSED:  # a request that is refused
        return None


def test_every_job_file_of_the_corpus_survives_a_round_trip() -> None:
    found = [(name, canonicalize(document(body))) for name, body in responses()]
    sources = {name: write_job(one) for name, one in found}
    assert len(sources) > 100
    assert [name for name, source in sources.items() if source is None] == []
    assert [
        name for name, one in found if not same_definition(read(sources[name] or ""), starts(one))
    ] == []


def test_every_registered_job_of_the_scenarios_survives_a_round_trip() -> None:
    sent = {
        json.dumps(given): name
        for name, steps in scenarios()
        for step in steps
        if (given := sent_job(step))
    }
    jobs = [(name, one) for text, name in sent.items() if (one := completed(json.loads(text)))]
    written = [(name, one, write_job(one)) for name, one in jobs]
    assert len(written) > 300
    assert {name for name, _, source in written if source is None} <= UNSAYABLE
    assert [
        name
        for name, one, source in written
        if source and not same_definition(read(source), starts(one))
    ] == []


# Text that contains all special characters of job files.
TEXT = st.text(
    st.one_of(st.sampled_from('${}%"\\\n\t\r#<EOF~ ab.'), st.characters(codec="utf-8")), max_size=12
)
NAME = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
LEAF = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**53), 2**53),
    # Whole numbers that JSON writes as 1.0 are 1 in a job file.
    st.floats(-1e6, 1e6, width=32).filter(lambda value: not value.is_integer()),
)
CONFIG = st.dictionaries(
    NAME,
    st.recursive(
        LEAF,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(NAME, inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=4,
)
TEXTS = st.dictionaries(st.one_of(NAME, TEXT.filter(bool)), TEXT, max_size=3)
SPAN = st.integers(0, 10**13)
TEMPLATE = st.fixed_dictionaries(
    {"EmbeddedTmpl": TEXT, "DestPath": TEXT}, optional={"Splay": SPAN, "Perms": TEXT}
)
CHECK = st.fixed_dictionaries(
    {"Type": st.sampled_from(["http", "tcp"]), "Path": TEXT, "Interval": SPAN, "Timeout": SPAN}
)
SERVICE = st.fixed_dictionaries(
    {"Name": NAME, "Provider": st.sampled_from(["nomad", "consul"])},
    optional={"Tags": st.lists(TEXT, max_size=2), "Checks": st.lists(CHECK, max_size=2)},
)
PORT = st.fixed_dictionaries({"Label": NAME, "To": st.integers(0, 65535)})
NETWORK = st.fixed_dictionaries(
    {
        "Mode": st.sampled_from(["", "host", "bridge"]),
        "DynamicPorts": st.lists(PORT, max_size=2),
        "ReservedPorts": st.lists(
            st.fixed_dictionaries({"Label": NAME, "Value": st.integers(1, 65535)}), max_size=2
        ),
    }
)
CONSTRAINT = st.fixed_dictionaries(
    {
        "LTarget": st.sampled_from(["${attr.kernel.name}", "${meta.a}", "x"]),
        "RTarget": TEXT,
        "Operand": st.sampled_from(["=", "!=", "regexp", "version", "distinct_hosts", "is_set"]),
    }
)
TASK = st.fixed_dictionaries(
    {"Name": NAME, "Driver": NAME, "Config": CONFIG},
    optional={
        "Env": TEXTS,
        "Meta": TEXTS,
        "Templates": st.lists(TEMPLATE, max_size=2),
        "Services": st.lists(SERVICE, max_size=2),
        "KillTimeout": SPAN,
        "Leader": st.booleans(),
        "Constraints": st.lists(CONSTRAINT, max_size=2),
        "RestartPolicy": st.fixed_dictionaries({"Attempts": st.integers(0, 9), "Delay": SPAN}),
        "Resources": st.fixed_dictionaries(
            {"CPU": st.integers(1, 9999), "MemoryMB": st.integers(10, 9999)}
        ),
    },
)
GROUP = st.fixed_dictionaries(
    {"Name": NAME, "Count": st.integers(0, 5), "Tasks": st.lists(TASK, min_size=1, max_size=1)},
    optional={
        "Networks": st.lists(NETWORK, max_size=1),
        "Meta": TEXTS,
        "Constraints": st.lists(CONSTRAINT, max_size=2),
        "Update": st.fixed_dictionaries({"Canary": st.integers(0, 2), "MaxParallel": SPAN}),
        "EphemeralDisk": st.fixed_dictionaries({"SizeMB": st.integers(10, 999)}),
        "ShutdownDelay": SPAN,
    },
)
JOB = st.fixed_dictionaries(
    {
        "ID": st.one_of(NAME, TEXT.filter(bool)),
        "Type": st.sampled_from(["service", "batch", "system", "sysbatch"]),
        "TaskGroups": st.lists(GROUP, min_size=1, max_size=2),
    },
    optional={
        "Name": TEXT,
        "Priority": st.integers(1, 100),
        "Datacenters": st.lists(NAME, max_size=2),
        "Meta": TEXTS,
        "Update": st.fixed_dictionaries({"MaxParallel": st.integers(0, 3), "Stagger": SPAN}),
    },
)


@settings(max_examples=60)
@given(JOB)
def test_written_job_is_parsed_as_the_same_job(given_job: Document) -> None:
    whole = complete(given_job)
    source = write_job(whole)
    assert source is None or same_definition(read(source), whole)


# ASCII only, because HCL normalizes other texts.
PLAIN = st.text(st.characters(codec="ascii"), max_size=12)


@given(CONFIG, st.dictionaries(NAME, PLAIN, max_size=3), PLAIN, SPAN)
def test_any_plain_text_job_can_be_written(
    config: Document, env: dict[str, str], text: str, span: int
) -> None:
    plain = json.loads(json.dumps(config).encode("ascii", "backslashreplace"))
    templates = [{"EmbeddedTmpl": text, "DestPath": "local/x"}]
    one = task(Config=_ascii(plain), Env=env, Templates=templates, KillTimeout=span)
    assert write_job(complete(job(group(one)))) is not None


def _ascii(value: Any) -> Any:
    match value:
        case str():
            return value.encode("ascii", "replace").decode()
        case list():
            return [_ascii(item) for item in value]
        case dict():
            return {key: _ascii(one) for key, one in value.items()}
        case _:
            return value


def test_default_values_are_omitted() -> None:
    assert write_job(complete(job(group(task(Config={"command": "/bin/true"}))))) == (
        'job "g" {\n\n  group "web" {\n\n    task "main" {\n      driver = "raw_exec"\n\n'
        '      config {\n        command = "/bin/true"\n      }\n    }\n  }\n}\n'
    ).replace("{\n\n", "{\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("${attr.kernel.name}", '"${attr.kernel.name}"'),
        ("$${attr.kernel.name}", '"$$${attr.kernel.name}"'),
        ("${1 + 1}", '"$${1 + 1}"'),
        ("%{ if true }", '"%%{ if true }"'),
        ('a"b\\', '"a\\"b\\\\"'),
        ("one\ntwo\n", "<<EOF\none\ntwo\nEOF"),
        ("EOF\ntwo\n", "<<EOF_\nEOF\ntwo\nEOF_"),
        ("one\ntwo", '"one\\ntwo"'),
    ],
)
def test_quoted_text_keeps_its_meaning(text: str, written: str) -> None:
    whole = complete(job(group(task(Config={"x": text}))))
    source = write_job(whole)
    assert source is not None
    assert f"x = {written}\n" in source
    assert same_definition(read(source), whole)


def test_driver_maps_and_blocks_preserve_their_form() -> None:
    config = {"labels": {"a.b": "c"}, "mount": [{"type": "bind"}, {"type": "volume"}]}
    whole = complete(job(group(task(Config=config))))
    source = write_job(whole)
    assert source is not None
    assert source.count("mount {") == 2
    assert same_definition(read(source), whole)


def test_job_beyond_the_job_file_syntax_is_not_written() -> None:
    decomposed = "e\u0301"  # job files hold texts in their composed form
    assert write_job(complete(job(group(task(Config={"x": decomposed}))))) is None


def test_a_job_with_a_port_without_label_is_written_or_has_no_file() -> None:
    network = {"Mode": "host", "DynamicPorts": [{"To": 80}]}
    given_job = complete(job(group(task(), Networks=[network])))
    source = write_job(given_job)
    assert source is None or same_definition(read(source), given_job)
