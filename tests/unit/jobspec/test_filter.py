"""Filter expressions over jobs, evaluations and nodes."""

from typing import Any

import msgspec
import pytest

from daemon.jobspec.filter import compile_filter, matching_records
from storage.errors import Malformed
from storage.records.codec import Document
from storage.records.evaluation import Evaluation
from storage.records.job import Job
from storage.records.node import Node
from tests.unit.jobspec import recorded
from tests.unit.jobspec.build import complete, group, job, task

SPACE = r"[ \t\r\n]"
OPERATORS = f'"!=", "==", "contains", "in", "is", "matches", "not" or {SPACE}'


def wire(document: Document) -> Document:
    return msgspec.to_builtins(complete(document))


DOCUMENT = wire(
    job(
        group(
            task(Env={"A": "1"}, Config={"command": "/bin/sh", "args": ["-c", 7, True, None]}),
            task("side", Leader=True),
            Count=2,
            Networks=[{"DynamicPorts": [{"Label": "http", "To": 8080}]}],
        ),
        group(Name="db", Count=1),
        ID="shop",
        Meta={"team": "ops", "a.b": "dotted", "empty": ""},
        Datacenters=["dc1", "dc2"],
        Priority=70,
    )
)


def holds(text: str, document: Document = DOCUMENT, record: type[msgspec.Struct] = Job) -> bool:
    return compile_filter(text, record)(document)


def unreadable(text: str) -> str:
    """Return why an expression cannot be read."""
    with pytest.raises(Malformed) as raised:
        compile_filter(text, Job)
    before, _, after = str(raised.value).partition("failed to read filter expression: ")
    assert before == "failed to create result paginator: "
    return after


# ---- recorded -----------------------------------------------------------------------------------

STEPS = recorded.scenario("list-jobs")
JOBS = [wire(sent) for step in STEPS if (sent := recorded.sent_job(step))]
FILTERED = [step for step in STEPS if "filter" in (step.get("request", {}).get("query") or {})]


@pytest.mark.parametrize("step", FILTERED, ids=lambda step: step["id"])
def test_recorded_filters_give_the_recorded_results(step: recorded.Step) -> None:
    query, wanted = step["request"]["query"], step["response"]["body"]
    jobs = [job for job in JOBS if job["ID"].startswith(query["prefix"])]
    if step["response"]["status"] == 400:
        with pytest.raises(Malformed) as raised:
            [holds(query["filter"], job) for job in jobs]
        assert str(raised.value) == wanted
    else:
        found = [job["ID"] for job in jobs if holds(query["filter"], job)]
        assert found == [item["ID"] for item in wanted]


def test_recorded_filters_exist() -> None:
    assert (len(JOBS), len(FILTERED)) >= (5, 19)


@pytest.mark.parametrize(
    ("name", "number", "record"),
    [("agent-and-status", 19, Node), ("evaluations-allocations", 14, Evaluation)],
)
def test_other_listings_refuse_the_same_filters(
    name: str, number: int, record: type[msgspec.Struct]
) -> None:
    (step,) = (step for step in recorded.scenario(name) if step["id"] == f"{name}/{number}")
    with pytest.raises(Malformed) as raised:
        compile_filter(step["request"]["query"]["filter"], record)
    assert str(raised.value) == step["response"]["body"]


# ---- comparisons --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ID == shop", True),
        ('ID == "shop"', True),
        ("ID == `shop`", True),
        ('ID=="shop"', True),
        ("ID != shop", False),
        ('ID == ""', False),
        (r'ID == "sh\u006fp"', True),
        (r'ID == "\x73\150op"', True),
        (r'ID == "\U00000073hop\n"', False),
        (r'ID == "\\"', False),
        ("Version == 0", True),
        ("Priority == 70", True),
        ("Priority == `0x46`", True),
        ('Priority == "+70"', True),
        ("Priority != 70", False),
        ("Stop == false", True),
        ("Stop == F", True),
        ("Stop != 1", True),
        ("ID contains ho", True),
        ("ID not contains ho", False),
        ("ho in ID", True),
        ("ho not in ID", False),
        ("Datacenters contains dc1", True),
        ("dc3 not in Datacenters", True),
        ("Meta contains team", True),
        ("nope in Meta", False),
        ("ID matches `^s.*p$`", True),
        ("ID not matches `^x`", True),
        ('ID matches "(?i)SHOP"', True),
        ("Constraints is empty", True),
        ("Datacenters is not empty", True),
        ("ParentID is empty", True),
        ("Constraints is nil", True),
        ("Datacenters is nil", False),
        ("Datacenters is not nil", True),
        ("Periodic is nil", True),
        ("Update is nil", False),
    ],
)
def test_values_are_compared_by_type(text: str, *, found: bool) -> None:
    assert holds(text) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Meta.team == ops", True),
        ('Meta["team"] == ops', True),
        ('Meta["a.b"] == dotted', True),
        ('"/Meta/a.b" == dotted', True),
        ('"/Meta/team" == ops', True),
        ("Meta.nope == ops", False),
        ("Meta.nope != ops", True),
        ("Meta.nope is empty", True),
        ("Meta.empty is empty", True),
        ("Meta.nope contains x", False),
        ("Meta.nope matches `.*`", False),
        ("Meta.nope not matches `.*`", True),
        ("TaskGroups.0.Count == 2", True),
        ('TaskGroups["1"].Name == db', True),
        ("TaskGroups.0.Networks.0.DynamicPorts.0.To == 8080", True),
        ("TaskGroups.0.Networks.0.DynamicPorts.0.Value == 0", True),  # left out of the document
        ("TaskGroups.0.Tasks.0.Env.A == 1", True),
        ("TaskGroups.0.Tasks.0.Config.command == `/bin/sh`", True),
        ('TaskGroups.0.Tasks.0.Config.args contains "-c"', True),
        ("TaskGroups.0.Tasks.0.Config.args contains 7", True),
        ("TaskGroups.0.Tasks.0.Config.args contains true", True),
        ("TaskGroups.0.Tasks.0.Config.args.2 == true", True),
        ("TaskGroups.0.Tasks.0.Config.args.1 == 7.0", True),
        ("TaskGroups.0.Tasks.0.KillTimeout == 5000000000", True),
        ("NomadTokenID is empty", True),  # the field has two names
        ("ServiceTokenID is empty", True),
    ],
)
def test_values_are_selected_by_names_keys_and_indexes(text: str, *, found: bool) -> None:
    assert holds(text) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ID == shop and Priority == 70", True),
        ("ID == shop and Priority == 71", False),
        ("ID == x or Priority == 70", True),
        ("ID == x or ID == y or ID == shop", True),
        ("ID == x and Stop == true or ID == shop", True),  # `and` binds closer
        ("ID == x and (Stop == true or ID == shop)", False),
        ("not ID == x", True),
        ("not not ID == x", False),
        ("not (ID == shop and Stop == true)", True),
        ("( ID == shop )", True),
        ("  ID == shop\n", True),
        ("((ID == shop) and (not Stop == true))", True),
    ],
)
def test_expressions_are_combined(text: str, *, found: bool) -> None:
    assert holds(text) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("any TaskGroups as g { g.Count == 2 }", True),
        ("all TaskGroups as g { g.Count == 2 }", False),
        ("all TaskGroups as g { g.Count != 0 }", True),
        ("any Datacenters as dc { dc == dc2 }", True),
        ("any Datacenters as i, dc { i == 1 and dc == dc2 }", True),
        ("any Datacenters as i, _ { i == 2 }", False),
        ("any Datacenters as _, dc { dc == dc1 }", True),
        ("any Meta as key { key == team }", True),
        ("any Meta as key, value { key == team and value == ops }", True),
        ("all Meta as _, value { value is not empty }", False),
        ("any Constraints as c { c.Operand == x }", False),
        ("all Constraints as c { c.Operand == x }", True),
        ("any Meta.nope as x { x == y }", False),
        ("any TaskGroups as g { any g.Tasks as t { t.Leader == true } }", True),
        ("all TaskGroups as g { any g.Tasks as t { t.Leader == true } }", False),
        ("ID == x or any TaskGroups as g { g.Count == 2 }", True),
    ],
)
def test_items_of_lists_and_maps_are_compared(text: str, *, found: bool) -> None:
    assert holds(text) is found


# ---- filters that cannot be parsed --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("ID", "1:3 (2)", f'"!=", ".", "==", "[", {SPACE} or [a-zA-Z0-9_/]'),
        ("ID = x", "1:4 (3)", OPERATORS),
        ("ID > x", "1:4 (3)", OPERATORS),
        ("ID is", "1:6 (5)", SPACE),
        ("ID == x and", "1:12 (11)", SPACE),
        ("ID == x)", "1:8 (7)", f'".", "[", {SPACE}, [a-zA-Z0-9_/] or EOF'),
        ("ID == a b", "1:9 (8)", f'"and", "or", {SPACE} or EOF'),
        ("any Meta as { x == y }", "1:13 (12)", f'"_", {SPACE} or [a-zA-Z]'),
        ("any Meta as x x == y", "1:15 (14)", f'",", "{{" or {SPACE}'),
        ("ID == x and any Meta as y { y == z }", "1:17 (16)", OPERATORS),  # `any` needs `or`
        ('Meta["\u00e9"]\n = x', "2:2 (12)", OPERATORS),  # line, column and offset in bytes
        (
            "",
            "1:1 (0)",
            f'"(", "-", "0", "\\"", "`", "all", "any", "not", {SPACE}, [1-9] or [a-zA-Z]',
        ),
    ],
)
def test_syntax_error_has_its_position(text: str, place: str, expected: str) -> None:
    assert unreadable(text) == f"{place}: no match found, expected: {expected}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(ID == x", '1:9 (8): rule "grouping": Unmatched parentheses'),
        ("ID == 1x", '1:8 (7): rule "number": Invalid number literal'),
        ('ID == "x', '1:9 (8): rule "string": Unterminated string literal'),
        ("ID == `x", '1:9 (8): rule "string": Unterminated string literal'),
        (r'ID == "\q"', '1:7 (6): rule "string": invalid syntax'),
        (r'ID == "\ud800"', '1:7 (6): rule "string": invalid syntax'),
        (r'ID == "\UFFFFFFFF"', '1:7 (6): rule "string": invalid syntax'),
        ('ID == "a\nb"', '1:7 (6): rule "string": invalid syntax'),
        ("Meta[x] == 1", '1:6 (5): rule "index": Invalid index'),
        ('Meta["x" == 1', '1:10 (9): rule "index": Unclosed index expression'),
        ("x in 5", '1:6 (5): rule "match": Invalid selector'),
        ("(" * 52 + "ID == x" + ")" * 52, "the expression is nested more than 50 levels deep"),
    ],
)
def test_some_errors_have_specific_messages(text: str, problem: str) -> None:
    assert unreadable(text) == problem


# ---- filters that do not fit the document -------------------------------------------------------


def missing(pointer: str, part: int, field: str) -> str:
    return (
        f"error finding value in datum: {pointer} at part {part}: couldn't find key: struct field "
        f'with name "{field}"'
    )


def misread(reader: str, text: str, why: str = "invalid syntax") -> str:
    problem = f'strconv.{reader}: parsing "{text}": {why}'
    return f"error getting match value in expression: {problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Nope == 1", missing("/Nope", 0, "Nope")),
        ("id == 1", missing("/id", 0, "id")),
        ("Update.Nope == 1", missing("/Update/Nope", 1, "Nope")),
        ("TaskGroups.0.Nope == 1", missing("/TaskGroups/0/Nope", 2, "Nope")),
        (
            "ID.x == 1",
            "error finding value in datum: /ID/x: at part 1, invalid value kind: string",
        ),
        (
            "TaskGroups.2.Name == x",
            "error finding value in datum: /TaskGroups/2/Name at part 1: index 2 is out of range "
            "(length = 2)",
        ),
        (
            "TaskGroups.x.Name == x",
            "error finding value in datum: /TaskGroups/x/Name at part 1: couldn't convert value "
            '"x" to type int',
        ),
        (
            "Periodic.Spec == x",
            "error finding value in datum: /Periodic/Spec: at part 1, invalid value kind: invalid",
        ),
        ("Priority == x", misread("ParseInt", "x")),
        ("Priority == 1.5", misread("ParseInt", "1.5")),
        (f"Priority == {2**63}", misread("ParseInt", str(2**63), "value out of range")),
        ("Version == `-1`", misread("ParseUint", "-1")),
        ("Stop == yes", misread("ParseBool", "yes")),
        ("TaskGroups.0.Tasks.0.Config.args.1 == x", misread("ParseFloat", "x")),
        (
            "x in TaskGroups.0.Tasks.0.Config.args",
            'unable to find suitable primitive comparison function for "in" comparison in '
            "interface slice: invalid",
        ),
        (
            "Update == x",
            "unable to find suitable primitive comparison function for matching",
        ),
        (
            "x in TaskGroups",
            'unable to find suitable primitive comparison function for "in" comparison',
        ),
        (
            "1 in Priority",
            'cannot perform in/contains operations on type int for selector: "Priority"',
        ),
        (
            "Priority is empty",
            'cannot perform is-empty operations on type int for selector: "Priority"',
        ),
        ("ID is nil", 'cannot perform is-nil operations on type string for selector: "ID"'),
        ("Priority matches x", "value of type int is not convertible to []byte"),
        (
            "ID matches `(`",
            'failed to compile regular expression "(": error parsing regexp: missing closing ): '
            "`(`",
        ),
        ("any ID as x { x == y }", "ID is not a list or a map"),
        (
            "any Datacenters as x, x { x == y }",
            '"x" cannot be used as a placeholder for both the index and the value',
        ),
        (
            "any Meta as key { key.x == y }",
            "/key references a string so /key/x is invalid",
        ),
    ],
)
def test_filter_refuses_an_unsuitable_document(text: str, problem: str) -> None:
    wanted = compile_filter(text, Job)
    with pytest.raises(Malformed) as raised:
        wanted(DOCUMENT)
    assert str(raised.value) == f"failed to read result page: {problem}"


def test_unread_field_is_not_refused() -> None:
    assert not holds("ID == x and Nope == 1")
    assert holds("ID == shop or Nope == 1")


def test_pattern_with_many_possible_matches_is_fast() -> None:
    document: dict[str, Any] = {**DOCUMENT, "Name": "a" * 5000}
    assert not holds("Name matches `^(a|aa)*b$`", document)


def test_empty_filter_matches_all_records() -> None:
    records = [complete(job(ID="a")), complete(job(ID="b"))]
    assert matching_records(records, "", Job) == records
    assert matching_records(records, 'ID == "b"', Job) == records[1:]


@pytest.mark.parametrize(("terms", "texts"), [(63, 1), (64, 0)])
def test_store_evaluates_no_term_of_more_than_64_parts(terms: int, texts: int) -> None:
    text = " or ".join(['not ID matches "^a"', *['ID == "a"'] * (terms - 2)])
    assert len(compile_filter(text, Job).conditions({"ID": "id"}).texts) == texts
