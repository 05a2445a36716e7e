"""The graph and the time line of a run."""

from typing import Any

from daemon.ui.flow_picture import MOST_BARS, MOST_DRAWN, longest_chain, picture, timeline
from storage.records.base import SECOND


def step(name: str, level: int, *needs: str, **fields: Any) -> dict[str, Any]:
    return {
        "Name": name,
        "State": "succeeded",
        "Reason": "",
        "Outcome": "good",
        "Attempt": 1,
        "Since": 0,
        "Opened": 0,
        "Total": 1,
        "Good": 1,
        "Level": level,
        "Needs": list(needs),
        **fields,
    }


def timed(name: str, level: int, begin: int, end: int, *needs: str, **fields: Any) -> Any:
    return step(name, level, *needs, Opened=begin * SECOND, Since=end * SECOND, **fields)


DIAMOND = [
    timed("a", 0, 100, 110),
    timed("b", 1, 110, 115, "a"),
    timed("c", 1, 110, 140, "a"),
    timed("d", 2, 140, 150, "b", "c"),
]


def test_each_step_is_right_of_its_needs() -> None:
    found = picture(DIAMOND)
    assert found is not None
    places = {box.name: box for box in found.boxes}
    assert places["a"].x < places["b"].x == places["c"].x < places["d"].x
    assert places["b"].y != places["c"].y
    assert len(found.lines) == 4
    assert max(box.x for box in found.boxes) + 150 <= found.width
    assert max(box.y for box in found.boxes) + 40 <= found.height


def test_steps_do_not_overlap() -> None:
    steps = [step("root", 0)] + [step(f"s{at}", 1, "root") for at in range(40)]
    found = picture(steps)
    assert found is not None
    assert len({(box.x, box.y) for box in found.boxes}) == 41


def test_critical_chain_and_failed_needs_are_marked() -> None:
    steps = [*DIAMOND[:1], {**DIAMOND[1], "Outcome": "bad"}, *DIAMOND[2:]]
    found = picture(steps, ["a", "c", "d"])
    assert found is not None
    kinds = {line.text: line.kind for line in found.lines}
    assert kinds == {
        "b needs a": "plain",
        "c needs a": "chain",
        "d needs b": "bad",
        "d needs c": "chain",
    }


def test_graph_with_too_many_steps_is_not_drawn() -> None:
    assert picture([step(f"s{at}", 0) for at in range(MOST_DRAWN + 1)]) is None
    assert picture([]) is None


def test_long_name_is_shortened_and_complete_in_the_title() -> None:
    found = picture([step("x" * 40, 0)])
    assert found is not None
    assert len(found.boxes[0].label) < 40
    assert "x" * 40 in found.boxes[0].text


def test_longest_chain_follows_the_needs_that_ended_last() -> None:
    assert longest_chain(DIAMOND, 0) == ["a", "c", "d"]
    assert longest_chain([step("a", 0, State="waiting")], 0) == []


def test_running_step_lasts_until_now() -> None:
    steps = [DIAMOND[0], timed("b", 1, 110, 110, "a", State="running")]
    found = timeline(steps, 210 * SECOND)
    assert found is not None
    assert (found.bars[1].x, found.bars[1].width) == (90.9, 909.1)
    assert found.chain == ["a", "b"]
    assert found.chain_time == "1 min 50 s"
    assert found.ticks[-1] == "1 min 50 s"


def test_held_step_is_drawn_from_the_time_since_which_it_is_held() -> None:
    gate = step("gate", 1, "a", State="held", Since=110 * SECOND)
    found = timeline([DIAMOND[0], gate, step("b", 2, "gate", State="waiting")], 210 * SECOND)
    assert found is not None
    assert [(bar.name, bar.state, bar.x, bar.width) for bar in found.bars] == [
        ("a", "succeeded", 0.0, 90.9),
        ("gate", "held", 90.9, 909.1),
    ]
    assert found.chain == ["a", "gate"]
    assert found.ticks[-1] == "1 min 50 s"
    only = timeline([step("gate", 0, State="held", Since=110 * SECOND)], 210 * SECOND)
    assert only is not None
    assert only.chain_time == "1 min 40 s"


def test_run_without_a_started_step_has_no_timeline() -> None:
    assert timeline([step("a", 0, State="waiting")], SECOND) is None


def test_steps_of_the_chain_are_shown_among_too_many() -> None:
    many = [timed(f"s{at}", 0, 100, 101 + at) for at in range(MOST_BARS + 50)]
    short = timed("first", 0, 100, 100)
    last = timed("last", 1, 900, 901, "first")
    found = timeline([short, *many, last], 1000 * SECOND)
    assert found is not None
    assert len(found.bars) == MOST_BARS
    assert found.more == 52
    assert {bar.name for bar in found.bars if bar.is_longest} == {"first", "last"}
