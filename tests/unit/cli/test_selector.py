import pytest

from daemon.cli.core.selector import select
from storage.errors import Invalid

JOB = {
    "ID": "web",
    "Meta": {"a": "1", "b": "2"},
    "TaskGroups": [
        {"Name": "one", "Count": 1, "Tasks": [{"Name": "x"}, {"Name": "y"}]},
        {"Name": "two", "Count": 2, "Tasks": [{"Name": "z"}]},
    ],
}


@pytest.mark.parametrize(
    ("selector", "parts"),
    [
        ("", [JOB]),
        (".", [JOB]),
        (".ID", ["web"]),
        ("ID", ["web"]),
        (".TaskGroups[1].Name", ["two"]),
        (".TaskGroups[-1].Count", [2]),
        (".TaskGroups[].Name", ["one", "two"]),
        (".TaskGroups.Name", ["one", "two"]),
        (".TaskGroups.Tasks.Name", ["x", "y", "z"]),
        (".TaskGroups.[0].Tasks[1].Name", ["y"]),
        (".Meta", [{"a": "1", "b": "2"}]),
        (".Meta[]", ["1", "2"]),
    ],
)
def test_a_selector_names_parts_of_a_document(selector: str, parts: list[object]) -> None:
    assert select(JOB, selector) == parts


def test_field_of_a_list_selects_the_field_of_each_element() -> None:
    assert select([{"ID": "a"}, {"ID": "b"}], ".ID") == ["a", "b"]


@pytest.mark.parametrize(
    ("selector", "complaint"),
    [
        (".Id", "there is no field 'Id' here; the object has ID, Meta, TaskGroups"),
        (".TaskGroups[2]", "there is no element 2: the list has 2 elements"),
        (".ID.More", "'web' is a single value and has no field 'More'"),
        (".ID[]", "'web' is a single value and has no elements"),
        (".TaskGroups[x]", "cannot read '[x]'; write a path such as"),
    ],
)
def test_selector_without_a_match_names_existing_fields(selector: str, complaint: str) -> None:
    with pytest.raises(Invalid) as caught:
        select(JOB, selector)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("template", "example"),
    [
        ("{{.ID}}", "write .ID"),
        ("{{ .Meta.a }}", "write .Meta.a"),
        ("{{range .}}{{.ID}}{{end}}", "write .Status or .TaskGroups[0].Name"),
    ],
)
def test_template_is_refused_with_an_equivalent_selector(template: str, example: str) -> None:
    with pytest.raises(Invalid, match="takes a field selector, not a template") as caught:
        select(JOB, template)
    assert str(caught.value).endswith(example)
