"""Lists of steps: items, combinations, and the errors of lists."""

import tracemalloc

import msgspec
import pytest

from daemon.flow import lists
from daemon.flow.graph import problems, stored_graph, view
from daemon.flow.lists import Faulty, Item, Reference
from daemon.jobspec.steward_meta import check
from storage.errors import Invalid
from storage.records.group import TaskGroup
from tests.unit.flow.test_graph import step, workflow


def test_lists_and_objects_have_keys() -> None:
    assert lists.item(step("a", for_each='["x", 2]'), 1) == Item("1", 2)
    assert lists.item(step("a", for_each='{"eu": {"n": 1}}'), 0) == Item("eu", {"n": 1})
    assert lists.item(step("a", for_each="${output.p.x}"), 0, '["y"]') == Item("0", "y")


def test_a_matrix_has_its_combinations_in_order() -> None:
    group = step("a", matrix='{"os": ["a", "b"], "py": [1, 2]}')
    assert lists.count(group) == 4
    found = [lists.item(group, index) for index in range(4)]
    assert [item.key for item in found] == ["a,1", "a,2", "b,1", "b,2"]
    assert lists.values(found[2], 2) == {
        "each.key": "b,1",
        "each.value": '{"os":"b","py":1}',
        "each.index": "2",
        "each.value.os": "b",
        "each.value.py": "1",
    }
    assert lists.environment(found[0]) == {
        "STEWARD_EACH_KEY": "a,1",
        "STEWARD_EACH_VALUE": '{"os":"a","py":1}',
    }


@pytest.mark.parametrize("index", [-1, 4])
@pytest.mark.parametrize(
    "group", [step("a", matrix='{"x": [1, 2], "y": [3, 4]}'), step("a", for_each="[1, 2, 3, 4]")]
)
def test_an_element_beyond_the_list_has_no_item(group: TaskGroup, index: int) -> None:
    with pytest.raises(Faulty, match=f"^it has 4 items, and none for element {index}$"):
        lists.item(group, index)


def test_an_item_of_a_large_matrix_is_found_without_the_others() -> None:
    long = "x" * 50_000  # 10,000 combinations with it have 500 MB
    names = [f"{number:02}" for number in range(100)]
    document = {"long": [long], "a": names, "b": names}
    group = step("a", matrix=msgspec.json.encode(document).decode())
    tracemalloc.start()
    try:
        assert (lists.count(group), lists.item(group, 9_999).key) == (10_000, f"{long},99,99")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_list_with_64_levels_is_accepted() -> None:
    assert lists.length("[" * 64 + "]" * 64) == 1


def test_graph_has_the_length_of_a_literal_list() -> None:
    job = workflow(
        step("p"), step("a", "p", for_each="[1, 2]"), step("b", "p", for_each="${output.p.x}")
    )
    assert [step.count for step in stored_graph(job).steps] == [1, 2, 0]
    assert stored_graph(job).by_name["b"].source == Reference("p", "x")
    assert [step.elements_of for step in view(job).steps] == ["", "", "p.x"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "'x' is not JSON"),
        ("1", "'1' is neither a list nor an object"),
        (str([0] * 10_001), "it has 10001 items; the maximum is 10000"),
        ("[" * 100_000, "it has more than 64 levels of lists and objects"),
        ("[" * 65 + "]" * 65, "it has more than 64 levels of lists and objects"),
        ('["' + "x" * 65537 + '"]', "item '0' has more than 65536 bytes"),
    ],
)
def test_an_output_that_is_no_list_is_named(text: str, reason: str) -> None:
    with pytest.raises(Faulty) as fault:
        lists.length(text)
    assert str(fault.value) == reason


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            step("a", count=3, for_each="[1]"),
            "Task group a has both count = 3 and steward_for_each",
        ),
        (
            step("a", for_each="[1]", matrix='{"x": [1]}'),
            "Task group a has both steward_for_each and steward_matrix",
        ),
        (
            step("a", matrix=f'{{"x": ["{"é" * 16_500}"], "y": ["{"é" * 16_500}"]}}'),
            "Task group a: steward_matrix: its longest combination has more than 65536 bytes",
        ),
        (
            step("a", for_each="${output.p.x}"),
            'Task group a refers to output "p.x", but p does not come before it',
        ),
    ],
)
def test_lists_that_contradict_the_job_are_refused(group: TaskGroup, expected: str) -> None:
    assert list(problems(workflow(group, step("p")))) == [expected]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (lists.FOR_EACH, "a, b", "must be a JSON list or object, or one reference such as"),
        (lists.FOR_EACH, str([0] * 10_001), "has 10001 items; the maximum is 10000"),
        (lists.FOR_EACH, "[" * 60_000, "has more than 64 levels of lists and objects"),
        (lists.FOR_EACH, f"[{'1.5e300,' * 500}1]", "the body has more than 200 numbers with"),
        (lists.MATRIX, '{"a":' + "[" * 60_000, "has more than 64 levels of lists and objects"),
        (lists.MATRIX, "[]", "must be a JSON object of lists"),
        (lists.MATRIX, '{"a-b": [1]}', 'contains the invalid name "a-b"'),
        (lists.MATRIX, '{"a": []}', "must have at least one list, and no empty list"),
        (
            lists.MATRIX,
            str({"a": [0] * 200, "b": [0] * 100}).replace("'", '"'),
            "has 20000 combinations; the maximum is 10000",
        ),
    ],
)
def test_values_of_lists_are_checked(key: object, text: str, expected: str) -> None:
    with pytest.raises(Invalid) as refused:
        key.read(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"steward_matrix": '{"a": [1], "a": [2]}'}, 'names "a" twice'),
        ({"steward_for_each": '{"a": 1, "b": 2, "a": 3}'}, 'names "a" twice'),
        ({"steward_for_each": '[{"x": {"y": 1, "y": 2}}]'}, 'names "y" twice'),
        ({"steward_for_each": '[{"x": 1}, {"x": 2}, ' + "9" * 300 + "]"}, ""),
    ],
)
def test_list_with_a_repeated_name_is_refused(meta: dict[str, str], expected: str) -> None:
    found = [*check.problems(workflow(TaskGroup(name="g", meta=meta)))]
    assert [expected in error for error in found] == [True] * bool(expected)


def test_stored_list_with_a_repeated_name_keeps_its_meaning() -> None:
    assert lists.MATRIX.of({"steward_matrix": '{"a": [1], "a": [2]}'}) == {"a": [2]}


def test_malformed_list_has_one_error() -> None:
    wrong = workflow(step("a", for_each="[1,"), step("b", "a"))
    assert list(problems(wrong)) == []
    assert len([*check.problems(wrong)]) == 1


def test_only_an_object_has_values_by_name() -> None:
    assert lists.values(Item("0", [1]), 3) == {
        "each.key": "0",
        "each.value": "[1]",
        "each.index": "3",
    }
