"""The plan of a workflow shows its chains of steps, its queues and its calendars."""

from datetime import UTC, datetime
from typing import Any

from daemon.cli.core.flow_picture import picture
from storage.records.flow import GraphStep, PlannedCalendar, PlannedFlow, PlannedQueue

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def step(name: str, *needs: str, **more: Any) -> GraphStep:
    fields: dict[str, Any] = {
        "level": 0,
        "when": "success",
        "condition": "",
        "count": 1,
        "parallel": 0,
        **more,
    }
    return GraphStep(name=name, needs=list(needs), **fields)


def planned(*steps: GraphStep, levels: int = 1, **more: Any) -> PlannedFlow:
    fields: dict[str, Any] = {
        "job_id": "nightly",
        "namespace": "default",
        "version": 0,
        "is_workflow": True,
        "edges": [],
        "levels": [[] for _ in range(levels)],
        "longest": [],
        "order": [step.name for step in steps],
        **more,
    }
    return PlannedFlow(steps=list(steps), **fields)


def shown(flow: PlannedFlow) -> list[str]:
    return [line.strip() for line in picture(flow, NOW)]


def test_the_picture_of_the_design() -> None:
    flow = planned(
        step("plan"),
        step("load", "plan", elements_of="plan.shards", count=0, parallel=4),
        step("check", "load", each_of=["load"], elements_of="plan.shards", count=0),
        step("publish", "check", gate="Publish?", approvals=1, not_before="07:00 UTC"),
        step("page", "plan", "load", "check", "publish", when="failure"),
        levels=5,
        ready=["plan"],
        queues=[
            PlannedQueue(name="warehouse", use="runs", slots=2, in_use=1, waiting=0, exists=True)
        ],
        calendars=[
            PlannedCalendar(
                name="business", is_open=False, next_opening="2026-11-24T02:00:00+01:00"
            )
        ],
    )
    assert list(picture(flow, NOW)) == [
        'job "nightly": 5 steps in 5 levels; 1 can begin now',
        "    plan -> load x (list of plan.shards, 4 at a time) -> check x= "
        "-> publish (gate, not before 07:00 UTC)",
        "    plan, load, check, publish -> page (on failure)",
        '    slot of "warehouse": 1 of 2 in use',
        '    calendar "business": next open Tue 24 Nov 02:00',
    ]


def test_branches_joins_and_handlers_begin_lines() -> None:
    flow = planned(
        step("a", count=3),
        step("left", "a"),
        step("right", "a", condition="run.number > 1"),
        step("fix", "left", when="failure"),
        step("join", "left", "right", queues=["gpu"], slots=2, calendar="business"),
        step("end", "join", when="always", gate="Sure?", approvals=2),
    )
    assert shown(flow)[1:] == [
        "a x3 -> left",
        "a -> right (condition)",
        "left -> fix (on failure)",
        'left, right -> join (calendar "business", 2 slots of "gpu") '
        "-> end (always, gate with 2 approvals)",
    ]


def test_long_chains_wrap_and_many_lines_are_counted() -> None:
    chain = [step("s0"), *(step(f"s{number}", f"s{number - 1}") for number in range(1, 8))]
    assert shown(planned(*chain))[1:] == ["s0 -> s1 -> s2 -> s3 -> s4 -> s5", "s5 -> s6 -> s7"]
    lines = shown(planned(*(step(f"s{number}") for number in range(50))))
    assert (len(lines), lines[-1]) == (42, "10 more steps")
    many = shown(planned(step("a", *(f"n{number}" for number in range(9)))))
    assert many[1] == "n0, n1, n2, n3, n4, n5 and 3 more -> a"


def test_queues_and_calendars_show_their_state() -> None:
    flow = planned(
        step("a"),
        queues=[PlannedQueue(name="db", use="steps", slots=1, in_use=1, waiting=2, exists=False)],
        calendars=[
            PlannedCalendar(name="open", is_open=True),
            PlannedCalendar(name="later", is_open=False, next_opening="2027-01-04T08:00:00Z"),
            PlannedCalendar(name="never", is_open=False, searched_until="2031-11-28T00:00:00Z"),
            PlannedCalendar(name="long", is_open=False, reason="the calendar needs too many steps"),
        ],
    )
    assert shown(flow)[2:] == [
        'slot of "db": 1 of 1 in use (1 by default), 2 waiting',
        'calendar "open": open now',
        'calendar "later": next open Mon 04 Jan 2027 08:00',
        'calendar "never": closed until at least Fri 28 Nov 2031 00:00',
        'calendar "long": the calendar needs too many steps',
    ]
