"""Blocks of job files to fields of jobs: forms, defaults and units beyond the corpus."""

import pytest

from daemon.jobspec.decode.schema import BlockSchema, ChildBlock, FreeForm, TextMap
from daemon.jobspec.decode.tables.job import JOB
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.codec import Document
from tests.unit.jobspec.hcl.build import parse, refused


def group(text: str) -> Document:
    return parse(f'job "x" {{\n  group "g" {{\n{text}\n  }}\n}}\n')["TaskGroups"][0]


def task(text: str) -> Document:
    return group(f'task "t" {{\n driver = "d"\n{text}\n}}')["Tasks"][0]


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ('"1h2m3.5s"', HOUR + 2 * MINUTE + 3 * SECOND + SECOND // 2),
        ('"-10s"', -10 * SECOND),
        ('"+1.5h"', HOUR + HOUR // 2),
        ('"1us1µs1μs"', 3000),
        ('".5s"', SECOND // 2),
        ('"1.s"', SECOND),
        ('"0"', 0),
        ('"5${"s"}"', 5 * SECOND),
        ("7", 7),
    ],
)
def test_duration_has_units_or_is_in_nanoseconds(written: str, nanoseconds: int) -> None:
    assert task(f"kill_timeout = {written}")["KillTimeout"] == nanoseconds


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ('""', 'time: invalid duration ""'),
        ('"s"', 'time: invalid duration "s"'),
        ('"-"', 'time: invalid duration "-"'),
        ('"1h30"', 'time: missing unit in duration "1h30"'),
        ('"1d"', 'time: unknown unit "d" in duration "1d"'),
        ('"10000000h"', "time: invalid duration"),
        ("1.5", "must be a whole number"),
        ("[]", 'expected a string such as "30s"'),
        ("null", "duration value: nil"),
    ],
)
def test_invalid_duration_text_is_refused(written: str, complaint: str) -> None:
    assert complaint in refused(
        f'job "x" {{\n group "g" {{\n  shutdown_delay = {written}\n }}\n}}\n'
    )


def test_ports_are_separated_into_static_and_dynamic() -> None:
    network = group(
        'network {\n port "a" {}\n port "b" {\n static = 80\n to = "8080"\n }\n'
        ' reserved_ports "c" {\n static = 81\n }\n}'
    )["Networks"][0]
    assert [(port["Label"], port["Value"]) for port in network["ReservedPorts"]] == [
        ("c", 81),
        ("b", 80),
    ]
    assert [port["Label"] for port in network["DynamicPorts"]] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "targets"),
    [
        ('attribute = "a"', ("a", "=", "")),
        ('attribute = "a"\n value = true', ("a", "=", "true")),
        ('attribute = "a"\n operator = "!="\n value = 3', ("a", "!=", "3")),
        ('attribute = "a"\n version = ">= 1"', ("a", "version", ">= 1")),
        ("distinct_hosts = false", ("", "distinct_hosts", "false")),
        ('distinct_property = "p"\n value = "2"', ("p", "distinct_property", "2")),
        ('attribute = "a"\n is_not_set = "true"', ("a", "is_not_set", "")),
        ('attribute = "a"\n is_not_set = false', ("a", "is_set", "")),
    ],
)
def test_constraint_has_a_short_form(arguments: str, targets: tuple[str, ...]) -> None:
    found = group(f"constraint {{\n {arguments}\n}}")["Constraints"][0]
    assert found == dict(zip(("LTarget", "Operand", "RTarget"), targets, strict=True))


def test_one_identity_is_the_default_and_the_others_have_names() -> None:
    found = task(
        'identity {\n file = true\n}\nidentity {\n name = "a"\n aud = ["x"]\n ttl = "1h"\n}'
    )
    assert (found["Identity"]["Name"], found["Identity"]["File"]) == ("", True)
    assert [
        (identity["Name"], identity["Audience"], identity["TTL"])
        for identity in found["Identities"]
    ] == [("a", ["x"], HOUR)]
    assert task("identity {}")["Identities"] == []
    assert task("")["Identities"] is None


def test_group_or_job_setting_applies_to_tasks_without_their_own() -> None:
    job = parse(
        'job "x" {\n vault {\n role = "job"\n }\n'
        ' task "alone" {\n driver = "d"\n }\n'
        ' group "g" {\n vault {\n role = "group"\n }\n'
        '  task "own" {\n driver = "d"\n vault {\n role = "task"\n }\n }\n'
        '  task "none" {\n driver = "d"\n }\n }\n}\n'
    )
    roles = {
        task["Name"]: task["SecretsConfig"]["Role"]
        for group in job["TaskGroups"]
        for task in group["Tasks"]
    }
    assert roles == {"alone": "job", "own": "task", "none": "group"}
    assert "SecretsConfig" not in job["TaskGroups"][0]
    assert "Secrets" not in job["TaskGroups"][0]


def test_free_form_blocks_become_lists_of_maps() -> None:
    config = task(
        "config {\n a = null\n b = [null]\n o = { x = { y = 1 } }\n p = ({ x = 1 })\n n = 0.5\n"
        ' blk {\n i = 1\n }\n blk {\n i = 2\n o = { z = 1 }\n }\n lab "l" "m" {\n i = 3\n }\n}'
    )["Config"]
    assert config == {
        "b": [None],
        "o": [{"x": {"y": 1}}],
        "p": {"x": 1},
        "n": 0.5,
        "blk": [{"i": 1}, {"i": 2, "o": [{"z": 1}]}],
        "lab": [{"l": [{"m": [{"i": 3}]}]}],
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('task "t" {\n lifecycle {}\n}', 'The argument "hook" is required'),
        ('task "t" {\n scaling "disk" {\n max = 1\n }\n}', 'named "cpu" or "mem"'),
        ('task "t" {\n scaling "cpu" {\n max = 1\n type = "horizontal"\n }\n}', "vertical_cpu"),
        ("scaling {\n max = 1\n}\nscaling {\n max = 2\n}", "Duplicate scaling block"),
        ('network {\n port "p" {\n static = "web"\n }\n}', "a number is required"),
        ("count = null\nmeta = { a = null }", "null value is not allowed"),
        ('task "t" {\n env {\n A = [1]\n }\n}', "string required, but have tuple"),
        ('task "t" {\n config {\n a = 1e400\n }\n}', "too large for JSON"),
        ("meta {\n a = 1\n}\nmeta = { b = 2 }", "meta may not be defined more than once"),
        ("dynamic {}", "Missing name for dynamic"),
        ('dynamic "task" {\n for_each = [1]\n content {}\n}', "1 labels, but there are 0"),
        (
            'dynamic "task" {\n for_each = [1]\n labels = [null]\n content {}\n}',
            "dynamic block label",
        ),
        ('dynamic "task" {\n for_each = [1]\n labels = "a"\n content {}\n}', "list of strings"),
        ('dynamic "task" {\n for_each = [1]\n labels = ["a"]\n}', "Missing content block"),
        ('dynamic "task" {\n for_each = []\n content {}\n content {}\n}', "Duplicate content"),
        ('dynamic "task" {\n for_each = []\n iterator = a.b\n content {}\n}', "single word"),
        ('dynamic "task" {\n for_each = []\n lables = []\n content {}\n}', 'mean "labels"'),
        ('dynamic "dynamic" {\n for_each = []\n content {}\n}', 'type "dynamic" are not expected'),
    ],
)
def test_invalid_block_has_a_reason(text: str, complaint: str) -> None:
    assert complaint in refused(f'job "x" {{\n group "g" {{\n{text}\n }}\n}}\n')


@pytest.mark.parametrize(
    ("for_each", "found"),
    [
        ('["a", "b"]', [("0", "a"), ("1", "b")]),
        ("{ y = 1, x = 2 }", [("x", "2"), ("y", "1")]),
        ('convert(["b", "a"], set(string))', [("a", "a"), ("b", "b")]),
        ("[]", []),
    ],
)
def test_dynamic_block_is_expanded_for_each_element(
    for_each: str, found: list[tuple[str, str]]
) -> None:
    job = parse(
        f'job "x" {{\n dynamic "group" {{\n for_each = {for_each}\n iterator = it\n'
        ' labels = ["${it.key}-${it.value}"]\n content {\n meta {\n key = it.key\n }\n'
        '  dynamic "constraint" {\n for_each = [it.value]\n content {\n'
        "   attribute = constraint.value\n value = it.key\n }\n }\n }\n }\n}\n"
    )
    groups = job["TaskGroups"] or []
    assert [group["Name"] for group in groups] == [f"{key}-{value}" for key, value in found]
    assert [group["Meta"]["key"] for group in groups] == [key for key, _ in found]
    assert [
        (constraint["RTarget"], constraint["LTarget"])
        for group in groups
        for constraint in group["Constraints"]
    ] == found


def shapes() -> dict[str, BlockSchema]:
    """Return all shapes of a job file, by the path of their block."""
    found = {"job": JOB}
    waiting = [("job", JOB)]
    while waiting:
        path, shape = waiting.pop()
        for name, child in shape.blocks.items():
            if isinstance(child, ChildBlock):
                found[f"{path}.{name}"] = child.shape
                waiting.append((f"{path}.{name}", child.shape))
    return found


@pytest.mark.parametrize(("path", "shape"), shapes().items(), ids=shapes())
def test_tables_are_consistent(path: str, shape: BlockSchema) -> None:
    wires = [field.wire for field in shape.fields.values()]
    wires += [block.wire for block in shape.blocks.values()]
    assert len(set(wires) - {"DynamicPorts"}) == len(
        [wire for wire in wires if wire != "DynamicPorts"]
    )
    both = shape.fields.keys() & shape.blocks.keys()
    assert both == set(), path
    assert all(
        isinstance(block, ChildBlock | TextMap | FreeForm) for block in shape.blocks.values()
    )
