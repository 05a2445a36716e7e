"""Sorting of tables, and the labels of cells."""

import pytest

from daemon.ui.tables import label_cells, link, sort_table

ROWS = [{"name": "b", "size": 3}, {"name": "A", "size": 20}, {"name": "", "size": None}]
COLUMNS = {"name": lambda item: item["name"], "size": lambda item: item["size"]}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("", ["b", "A", ""]),
        ("name", ["A", "b", ""]),
        ("-name", ["b", "A", ""]),
        ("size", ["b", "A", ""]),
        ("-size", ["A", "b", ""]),
        ("nonsense", ["b", "A", ""]),
    ],
)
def test_rows_are_sorted_by_a_column_with_missing_values_last(
    chosen: str, names: list[str]
) -> None:
    table = sort_table("rows", ROWS, chosen, COLUMNS)
    assert [row["name"] for row in table.rows] == names


def test_second_click_reverses_the_order() -> None:
    table = sort_table("rows", ROWS, "name", COLUMNS)
    assert table.next_order("name") == "-name"
    assert table.next_order("size") == "size"
    assert sort_table("rows", ROWS, "-name", COLUMNS).next_order("name") == "name"


def test_link_to_the_same_page_preserves_other_parameters() -> None:
    pairs = [("namespace", "a b"), ("next_token", "x"), ("namespace", "second")]
    assert link("/ui/jobs", pairs, next_token="y") == "/ui/jobs?namespace=a+b&next_token=y"
    assert link("/ui/jobs", pairs, next_token="") == "/ui/jobs?namespace=a+b"
    assert link("/ui/job/%C3%A4%3F", []) == "/ui/job/%C3%A4%3F"


def test_each_cell_gets_the_label_of_its_column() -> None:
    table = (
        '<table><thead><tr><th scope="col">Job</th><th scope="col"><a href="?">State ↑</a></th>'
        '<th scope="col">&lt;i&gt; &#34;x&#34;</th><th><span class="hidden">Do</span></th></tr>'
        '</thead><tbody><tr><th scope="row">a</th><td class="x">b</td><td>c</td><td>d</td></tr>'
        '<tr><td colspan="4">nothing</td></tr></tbody></table>'
    )
    text = label_cells(table)
    assert '<th data-label="Job" scope="row">a</th>' in text
    assert '<td data-label="State" class="x">b</td>' in text
    assert '<td data-label="&lt;i&gt; &quot;x&quot;">c</td><td>d</td>' in text
    assert '<td colspan="4">nothing</td>' in text
    assert text.startswith('<table class="cards">')


@pytest.mark.parametrize(
    "table",
    [
        '<table class="diff"><thead><tr><th>a</th><th>b</th><th>c</th></tr></thead></table>',
        "<table><tbody><tr><td>a</td><td>b</td><td>c</td></tr></tbody></table>",
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody></tbody></table>",
        "no table at all",
    ],
)
def test_other_tables_are_unchanged(table: str) -> None:
    assert label_cells(table) == table
