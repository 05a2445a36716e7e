"""The pages of `steward top`: rows, order, filter, selection, and lines that fit the terminal."""

import pytest

from daemon.cli.commands.top import command
from daemon.cli.commands.top_view import (
    AllocationRow,
    AllocationUse,
    JobRow,
    NodeRow,
    ScreenLine,
    TopFacts,
    View,
    cut,
    parent_of,
    size,
)

NOW = 10**18
MINUTE = 60 * 10**9
JOBS = [
    JobRow("nightly", "default", "batch", "failing", 'the last run failed: task "main"', 0),
    JobRow("web", "default", "service", "running", "", 2),
    JobRow("old", "default", "batch", "complete", "", 1),
]
ALLOCATIONS = [
    AllocationRow("a" * 36, "web.g[0]", "default", "web", "running", NOW - MINUTE),
    AllocationRow("b" * 36, "web.g[1]", "default", "web", "running", NOW - MINUTE),
    AllocationRow("c" * 36, "n.g[0]", "default", "nightly/periodic-1", "failed", NOW - MINUTE),
]
USES = {"a" * 36: AllocationUse(10.0, 3 << 20, 1), "b" * 36: AllocationUse(2.5, 2 << 30, 0)}
FACTS = TopFacts(JOBS, ALLOCATIONS, USES, {"c" * 36: "exited with code 3"}, "node vm")


def looked(*keys: str, facts: TopFacts = FACTS, height: int = 24) -> View:
    view = View()
    view.arrange(facts, NOW)
    for key in keys:
        view.press(key, height)
        view.arrange(facts, NOW)
    return view


def names(view: View) -> list[str]:
    return [row.name for row in view.rows]


def test_failing_jobs_are_first_and_ended_jobs_last() -> None:
    assert names(looked()) == ["nightly", "web", "old"]


def test_job_has_the_usage_of_its_allocations() -> None:
    web = next(row for row in looked().rows if row.name == "web")
    assert (web.short, web.use) == ("2/2", AllocationUse(12.5, (3 << 20) + (2 << 30), 1))


def test_wide_screen_shows_the_trend_of_the_cpu_usage() -> None:
    uses = {
        "a" * 36: AllocationUse(10.0, 0, 0, (40.0, None, 100.0)),
        "b" * 36: AllocationUse(2.5, 0, 0, (None, 60.0)),
    }
    facts = FACTS._replace(uses=uses)
    view = looked(facts=facts)
    (web,) = [line.text for line in view.lines(facts, 120, 24) if line.text.startswith("web")]
    assert "         ▂ █" in web
    narrow = view.lines(facts, 100, 24)
    assert not any("█" in line.text or "TREND" in line.text for line in narrow)


def test_runs_are_folded_into_their_parent() -> None:
    assert parent_of("nightly/periodic-1") == parent_of("nightly/dispatch-1-2") == "nightly"
    assert names(looked("enter")) == ["n.g[0]"]


NODES = TopFacts(
    JOBS,
    [alloc._replace(node_id="n1") for alloc in ALLOCATIONS],
    USES,
    nodes=[
        NodeRow("n1", "vm", "default", "ready", "100 of 4000 MHz, 64 of 8000 MiB requested"),
        NodeRow("n2", "hpc", "gpu", "down", "the controller does not answer"),
    ],
)


def test_nodes_are_rows_with_their_pool_and_usage() -> None:
    view = looked("o", facts=NODES)
    assert names(view) == ["hpc", "vm"]  # trouble first
    assert view.rows[1].use == AllocationUse(12.5, (3 << 20) + (2 << 30), 1)
    assert view.rows[1].short == "2"
    text = [line.text for line in view.lines(NODES, 120, 24)]
    assert any(line.startswith("hpc") and "gpu" in line and "down" in line for line in text)
    assert any("100 of 4000 MHz" in line for line in text)
    assert command("explain", view, NODES) == ["node", "status", "n2"]
    assert all(len(line.text) <= 60 for line in view.lines(NODES, 60, 24))


def test_node_is_neither_stopped_nor_opened_and_escape_returns() -> None:
    view = looked("o", "x", "e", "l", facts=NODES)
    assert view.confirming is None
    assert view.page == "nodes"
    assert looked("o", "escape", facts=NODES).page == "jobs"


@pytest.mark.parametrize(
    ("key", "first"), [("c", "web.g[0]"), ("m", "web.g[1]"), ("r", "web.g[0]"), ("n", "n.g[0]")]
)
def test_keys_sort_rows(key: str, first: str) -> None:
    assert names(looked("tab", key))[0] == first


def test_the_filter_narrows_rows_until_escape() -> None:
    assert names(looked("tab", "/", *"g[1]", "enter")) == ["web.g[1]"]
    assert len(looked("tab", "/", *"g[1]", "enter", "escape").rows) == 3
    assert names(looked("tab", "/", *"wexb", "backspace", "backspace", "enter"))[0] == "web.g[0]"


def test_selection_stays_on_its_row_after_a_change_of_order() -> None:
    view = looked("tab", "n", "down")
    assert view.selected is not None
    before = view.selected.key
    view.press("m", 24)
    view.arrange(FACTS, NOW)
    assert view.selected.key == before


def test_selection_moves_to_a_neighbour_of_a_removed_row() -> None:
    view = looked("down")
    view.arrange(FACTS._replace(jobs=[JOBS[0], JOBS[2]]), NOW)
    assert view.selected is not None
    assert view.selected.key == ("default", "old")


def test_escape_returns_to_the_job() -> None:
    view = looked("down", "enter")
    assert (view.page, view.of_job) == ("allocations", ("default", "web"))
    view.press("escape", 24)
    view.arrange(FACTS, NOW)
    assert view.selected is not None
    assert (view.page, view.selected.name) == ("jobs", "web")


def test_stop_needs_confirmation() -> None:
    view = looked("x")
    assert "stop nightly? y: yes" in texts(view)[-2]
    assert view.press("n", 24) == ""
    assert view.press("x", 24) == ""
    assert view.press("y", 24) == "stop"


@pytest.mark.parametrize(
    ("keys", "wish", "words"),
    [
        ([], "logs", ["job", "logs", "-f", "--namespace", "default", "nightly"]),
        ([], "explain", ["job", "explain", "--namespace", "default", "nightly"]),
        ([], "stop", ["job", "stop", "--yes", "--namespace", "default", "nightly"]),
        (["tab"], "logs", ["alloc", "logs", "-f", "--namespace", "default", "c" * 36]),
        (["tab"], "explain", ["alloc", "status", "--namespace", "default", "c" * 36]),
        (["tab"], "stop", ["alloc", "stop", "--namespace", "default", "c" * 36]),
        (["tab"], "exec", ["alloc", "exec", "--namespace", "default", "c" * 36, "/bin/sh"]),
    ],
)
def test_keys_run_commands_for_the_selected_row(
    keys: list[str], wish: str, words: list[str]
) -> None:
    assert command(wish, looked(*keys), FACTS) == words


def test_exec_is_for_allocations_only() -> None:
    view = looked()
    assert view.press("e", 24) == ""
    assert "open the allocations with Enter" in view.message


def texts(view: View, width: int = 100, height: int = 24, facts: TopFacts = FACTS) -> list[str]:
    return [line.text for line in view.lines(facts, width, height)]


@pytest.mark.parametrize("width", [1, 20, 60, 61, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 6, 24])
@pytest.mark.parametrize("keys", [[], ["tab"]])
def test_lines_fit_every_terminal_width(width: int, height: int, keys: list[str]) -> None:
    found = texts(looked(*keys), width, height)
    assert len(found) == max(min(height, 6), height)
    assert all(len(line) <= width for line in found)


@pytest.mark.parametrize("keys", [[], ["tab"]])
def test_sixty_columns_show_state_cpu_memory_and_restarts(keys: list[str]) -> None:
    title = texts(looked(*keys), width=60)[2]
    assert {"NAME", "STATE", "CPU%", "MEMORY", "RST"} <= set(title.split())


def test_selected_row_is_visible() -> None:
    many = [JobRow(f"job-{n:03}", "default", "batch", "running", "", 1) for n in range(300)]
    view = looked("end", facts=FACTS._replace(jobs=many))
    assert view.shown(24)[-1].name == "job-299"
    view.press("home", 24)
    assert view.shown(24)[0].name == "job-000"
    view.press("page down", 24)
    assert "job-018" in {row.name for row in view.shown(24)}


def test_unresponsive_daemon_is_reported_above_the_last_values() -> None:
    first = looked().lines(FACTS._replace(trouble="cannot reach the daemon"), 80, 24)[0]
    assert first == ScreenLine("cannot reach the daemon", "red")


def test_text_of_a_job_cannot_control_the_terminal() -> None:
    facts = FACTS._replace(jobs=[JOBS[0]._replace(reason="\x1b]0;owned\x07\r\n")])
    assert all(line.isprintable() for line in texts(looked(facts=facts), facts=facts))


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("日本語", 5, "日本…"),
        ("x", 0, ""),
        ("e\u0301", 1, "e\u0301"),
    ],
)
def test_texts_are_truncated_by_columns(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


def test_sizes_have_a_short_form() -> None:
    assert [size(0), size(3 << 20), size(5 << 29)] == ["0M", "3M", "2.5G"]
