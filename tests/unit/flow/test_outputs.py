"""Outputs of steps: references to them, and their values as lists and texts."""

import pytest

from daemon.flow import conditions, outputs
from daemon.flow.conditions import NeedFacts, RunFacts, Undecidable, is_true
from daemon.flow.graph import problems
from daemon.flow.lists import Reference
from storage.records.flow import StepOutputs
from storage.records.group import TaskGroup
from storage.records.task import Artifact, Template
from tests.samples import task
from tests.unit.flow.test_graph import step, workflow

FACTS = {"a": NeedFacts(outputs={"rows": "12", "name": "x"})}


def using(name: str, needs: str, *texts: str) -> TaskGroup:
    """Return a step with a task that has these arguments."""
    found = step(name, needs)
    found.tasks[:] = [task(config={"args": list(texts)})]
    return found


def written(element: int, **texts: str) -> StepOutputs:
    return StepOutputs(step="a", element=element, alloc_id="", outputs=texts)


def test_references_are_found_once_in_order() -> None:
    group = using("b", "a", "${output.a.x}", "x=${output.a[3].y} ${output.a.x} ${output.a}")
    assert outputs.references(group) == (Reference("a", "x"), Reference("a", "y", 3))


def test_reference_is_a_text_a_list_or_an_element() -> None:
    known = [written(0, x="p"), written(2, x='q"')]
    assert outputs.value(Reference("a", "x"), known, total=1, is_list=False) == "p"
    assert outputs.value(Reference("a", "x"), known, total=3, is_list=True) == '["p",null,"q\\""]'
    assert outputs.value(Reference("a", "x", 2), known, total=3, is_list=True) == 'q"'
    assert outputs.value(Reference("a", "z", 2), known, total=3, is_list=True) == ""
    assert outputs.texts(known, total=3, is_list=True) == {"x": '["p",null,"q\\""]'}


def test_lists_of_outputs_have_a_limited_number_of_values() -> None:
    known = [written(number, **{f"n{number}": "x"}) for number in range(5)]
    assert len(outputs.by_name(known[:4], total=50_000, is_list=True)) == 4
    with pytest.raises(outputs.TooManyValues, match="more than 200000 output values"):
        outputs.by_name(known, total=50_000, is_list=True)


@pytest.mark.parametrize(
    ("text", "is_decided"),
    [
        ("needs.a.outputs.x == 1", False),
        ('"k" in needs.a.outputs', False),
        ("any needs as _, n { n.state == succeeded }", False),
        ("needs.a.exit_code == 1", True),
        ("needs.b.outputs.x == 1", True),
    ],
)
def test_condition_over_unreadable_outputs_is_undecidable(text: str, *, is_decided: bool) -> None:
    needs, faults = {"a": NeedFacts(), "b": NeedFacts()}, {"a": "too many"}
    if is_decided:
        assert not is_true(text, RunFacts(), needs, faults)
    else:
        with pytest.raises(Undecidable, match="too many"):
            is_true(text, RunFacts(), needs, faults)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (
            (step("a"), using("b", "", "${output.a.x}"), step("c", "b")),
            'Task group b refers to output "a.x", but a does not come before it',
        ),
        (
            (step("a"), using("b", "a", "${output.z.x}")),
            'Task group b refers to output "z.x", but z does not come before it',
        ),
        (
            (step("a", outputs="y, z"), step("b", "a"), using("c", "b", "${output.a.x}")),
            'Task group c refers to output "a.x", but a declares only: y, z',
        ),
        (
            (step("a", count=2), using("b", "a", "${output.a[2].x}")),
            'Task group b refers to output "a[2].x", but a has 2 elements',
        ),
        (
            (step("a", outputs="y"), step("b", "a", **{"if": "needs.a.outputs.x == 1"})),
            'Task group b: steward_if refers to output "x" of a, but a declares only: y',
        ),
    ],
)
def test_reference_without_a_value_is_refused(groups: tuple[TaskGroup, ...], expected: str) -> None:
    assert list(problems(workflow(*groups))) == [expected]


def test_reference_to_an_indirect_predecessor_is_accepted() -> None:
    groups = (step("a", outputs="x"), step("b", "a"), using("c", "b", "${output.a.x}"))
    assert list(problems(workflow(*groups))) == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("needs.a.outputs.rows > 3", True),
        ("needs.a.outputs.rows > 12", False),
        ("needs.a.outputs.rows == 12", True),
        ("needs.a.outputs.name == x", True),
        ("needs.a.outputs.none > 3", False),
        ("needs.a.outputs.none is empty", True),
    ],
)
def test_conditions_compare_outputs(text: str, *, answer: bool) -> None:
    assert list(conditions.problems(text, ["a"])) == []
    assert is_true(text, RunFacts(), FACTS) is answer


def test_nonnumeric_output_has_no_order() -> None:
    with pytest.raises(Undecidable, match='is "x", which is not a number'):
        is_true("needs.a.outputs.name > 3", RunFacts(), FACTS)


def with_template(text: str, **fields: str) -> TaskGroup:
    found = step("b", "a")
    template = Template(embedded_tmpl=text, dest_path="local/x", **fields)
    found.tasks[:] = [task(templates=[template])]
    return found


@pytest.mark.parametrize(
    ("text", "fields", "references"),
    [
        ('{{ output "a" "x" }} {{ range output "a" "y" 3 | parseJSON }}', {}, ["a.x", "a[3].y"]),
        ('{{ output "a" "x" }}{{ output "a" "x" }}', {}, ["a.x"]),
        ('<< output "a" "x" >>', {"left_delim": "<<", "right_delim": ">>"}, ["a.x"]),
        ('output "a" "x" {{ env "A" }} {{ output $step "x" }}', {}, []),
        ('{{ output "a" "x"', {}, []),
    ],
)
def test_outputs_in_templates_are_found(
    text: str, fields: dict[str, str], references: list[str]
) -> None:
    group = with_template(text, **fields)
    assert [str(item) for item in outputs.template_references(group)] == references


def test_many_unclosed_actions_are_searched_once() -> None:
    assert outputs.template_references(with_template("output" + "{{" * 400_000)) == ()


def test_template_output_must_belong_to_an_earlier_step() -> None:
    wrong = with_template('{{ output "c" "x" }}')
    assert list(problems(workflow(step("a"), wrong, step("c")))) == [
        'Task group b refers to output "c.x", but c does not come before it'
    ]


def test_unknown_source_does_not_hide_an_invalid_one() -> None:
    found = step("b", "a")
    sources = ("kept://${meta.step}/x", "kept://c/x", "kept://a/x", "kept:///x")
    found.tasks[:] = [task(artifacts=[Artifact(getter_source=source) for source in sources])]
    assert list(problems(workflow(step("a"), found))) == [
        'Task group b has the artifact "kept://c/x", but c does not come before it',
        'Task group b has the artifact "kept://a/x", but a keeps no files: it needs "steward_keep"',
        'Task group b has the artifact "kept:///x", but no step does not come before it',
    ]
