"""The time line of an allocation: phases, failures, and their text."""

from typing import Any

from daemon.ui.gantt import Timeline, timeline

BEGIN = 1_795_225_200_000_000_000  # 2026-11-21T01:40:00Z
SECOND = 10**9
NEVER = "0001-01-01T00:00:00Z"


def state(*events: tuple[float, str], ended: str = NEVER, **last: Any) -> dict[str, Any]:
    found = [
        {"Time": BEGIN + int(at * SECOND), "Type": word, "DisplayMessage": word, "ExitCode": 0}
        for at, word in events
    ]
    if found:
        found[-1] |= last
    return {"Events": found, "FinishedAt": ended, "State": "running" if ended == NEVER else "dead"}


def drawn(*, now: float = 10, **states: dict[str, Any]) -> Timeline:
    found = timeline(states, {}, BEGIN, BEGIN + int(now * SECOND))
    assert found is not None
    return found


def phases(found: Timeline, line: int = 0) -> list[tuple[str, float, float]]:
    return [(phase.kind, phase.x, phase.width) for phase in found.lines[line].phases]


def test_phases_follow_each_other_on_the_axis() -> None:
    found = drawn(
        main=state((1, "Received"), (2, "Task Setup"), (3, "Downloading Artifacts"), (5, "Started"))
    )
    assert phases(found) == [
        ("pending", 0, 200),
        ("setup", 200, 100),
        ("artifacts", 300, 200),
        ("running", 500, 500),
    ]


def test_restart_is_a_failure_and_a_wait() -> None:
    found = drawn(
        main=state(
            (0, "Received"), (1, "Started"), (5, "Terminated"), (5, "Restarting"), (7, "Started")
        )
    )
    assert [kind for kind, _, _ in phases(found)] == ["pending", "running", "waiting", "running"]
    assert found.lines[0].marks == []


def test_failed_attempt_is_marked_with_its_time() -> None:
    found = drawn(main=state((0, "Received"), (1, "Started"), (5, "Terminated"), ExitCode=3))
    (mark,) = found.lines[0].marks
    assert (mark.x, mark.text) == (500, "2026-11-21 01:40:05 UTC: Terminated, Terminated")
    assert "1 failed attempt" in found.lines[0].spoken


def test_kill_shows_the_time_until_the_end() -> None:
    found = drawn(
        main=state(
            (0, "Received"),
            (1, "Started"),
            (5, "Killing"),
            (10, "Killed"),
            ended="2026-11-21T01:40:10Z",
        ),
        now=3600,
    )
    assert phases(found)[-1] == ("stopping", 500, 500)
    assert found.end == BEGIN + 10 * SECOND


def test_short_phase_has_a_minimum_width() -> None:
    found = drawn(main=state((0, "Received"), (0.001, "Started"), (9.999, "Killing")))
    assert [width for _, _, width in phases(found)] == [4, 999.8, 4]
    assert found.lines[0].phases[0].text.startswith("pending for 1 ms")


def test_ticks_of_a_short_axis_differ() -> None:
    found = drawn(main=state((0, "Received"), (0.4, "Started")), now=1.9)
    assert found.ticks == ["+0 ms", "+475 ms", "+950 ms", "+1.4 s", "+1.9 s"]


def test_deleted_events_leave_a_gap() -> None:
    found = drawn(main=state((6, "Started")))
    assert phases(found) == [("running", 600, 400)]


def test_tasks_are_sorted_by_start_time() -> None:
    found = timeline(
        {
            "web": state((0, "Received"), (3, "Started")),
            "init": state((0, "Received"), (1, "Started")),
            "late": state((0, "Received")),
        },
        {"init": {"Hook": "prestart", "Sidecar": True}, "web": None},
        BEGIN,
        BEGIN + 10 * SECOND,
    )
    assert found is not None
    assert [(line.name, line.hook, line.sidecar) for line in found.lines] == [
        ("init", "prestart", True),
        ("web", "", False),
        ("late", "", False),
    ]
    assert [kind for kind, _ in found.kinds] == ["pending", "running"]


def test_allocation_without_events_has_no_timeline() -> None:
    assert timeline({"main": state()}, {}, BEGIN, BEGIN + SECOND) is None
