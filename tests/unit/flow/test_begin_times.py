"""The times at which steps begin, even when clocks change, and run timeouts."""

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

from daemon.flow.advance import Elements, RunLimits, advance, changes_at, timed
from daemon.flow.begin_times import Window, next_time_of_day, window
from daemon.flow.graph import Graph, Step, graph_of, problems
from daemon.jobspec.steward_meta.check import problems as key_problems
from daemon.jobspec.steward_meta.step_values import BeginTime, When, begin_time
from storage.errors import Malformed
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.flow import FlowRun, FlowStatus, Outcome, StepState
from tests.samples import group, job

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


NOON = at("2026-11-27T12:00:00+00:00")


def timed_step(first: str = "", last: str = "", zone: str = "UTC") -> Step:
    return Step(
        name="a",
        not_before=begin_time(first) if first else None,
        not_after=begin_time(last) if last else None,
        time_zone=zone,
    )


@pytest.mark.parametrize(
    ("first", "last", "began", "begins", "ends"),
    [
        ("13:00", "", "2026-11-27T12:00:00Z", "2026-11-27T13:00:00Z", None),
        ("07:00", "", "2026-11-27T22:00:00Z", "2026-11-28T07:00:00Z", None),
        ("12:00", "", "2026-11-27T12:00:00Z", "2026-11-27T12:00:00Z", None),
        ("22:00", "04:00", "2026-11-27T20:00:00Z", "2026-11-27T22:00:00Z", "2026-11-28T04:00:00Z"),
        ("22:00", "04:00", "2026-11-27T23:00:00Z", None, "2026-11-28T04:00:00Z"),
        ("22:00", "04:00", "2026-11-27T02:00:00Z", None, "2026-11-27T04:00:00Z"),
        ("", "2026-12-01T00:00:00Z", "2026-11-27T02:00:00Z", None, "2026-12-01T00:00:00Z"),
    ],
)
def test_times_of_day_count_from_the_start_of_the_run(
    first: str, last: str, began: str, begins: str | None, ends: str | None
) -> None:
    found = window(timed_step(first, last), met=at(began) + 30 * HOUR, began=at(began))
    assert found == Window(first=at(begins) if begins else None, last=at(ends) if ends else None)


def test_a_delay_counts_from_the_needs() -> None:
    found = window(timed_step("+15m", "+2h"), met=NOON, began=NOON - HOUR)
    assert found == Window(first=NOON + 15 * MINUTE, last=NOON + 2 * HOUR)


@pytest.mark.parametrize(
    ("first", "last", "met", "begins", "ends"),
    [
        ("", "06:00", "2026-11-28T05:00:00Z", None, "2026-11-28T06:00:00Z"),
        ("", "06:00", "2026-11-28T06:00:00Z", None, "2026-11-29T06:00:00Z"),
        ("22:00", "06:00", "2026-11-28T08:00:00Z", "2026-11-28T22:00:00Z", "2026-11-29T06:00:00Z"),
        ("22:00", "06:00", "2026-11-28T23:00:00Z", None, "2026-11-29T06:00:00Z"),
        ("", "2026-11-28T00:00:00Z", "2026-11-28T08:00:00Z", None, None),
        ("", "2026-11-29T00:00:00Z", "2026-11-28T08:00:00Z", None, "2026-11-29T00:00:00Z"),
    ],
)
def test_rerun_step_with_fulfilled_needs_is_not_too_late(
    first: str, last: str, met: str, begins: str | None, ends: str | None
) -> None:
    began = at("2026-11-27T21:00:00Z")
    found = window(timed_step(first, last), met=at(met), began=began, is_again=True)
    if found.first is not None and found.first <= at(met):
        found = Window(last=found.last)  # a time in the past does not hold the step
    assert found == Window(first=at(begins) if begins else None, last=at(ends) if ends else None)


def _by_model(minute: int, after: int, zone: ZoneInfo) -> int:
    """Return the next time at which a zone's clock shows `minute`, by a search of all minutes.

    If a clock change skips this minute, the result is an hour later.
    """
    start = after if after % MINUTE == 0 else after - after % MINUTE + MINUTE
    moment = datetime.fromtimestamp(start // SECOND, UTC)
    before = moment.astimezone(zone).utcoffset()
    while True:
        local = moment.astimezone(zone)
        shown, offset = local.hour * 60 + local.minute, local.utcoffset()
        assert before is not None
        assert offset is not None
        jump = int((offset - before).total_seconds() // 60)
        skipped = jump > 0 and (shown - jump <= minute < shown)
        if skipped:
            return int((moment + timedelta(minutes=minute - (shown - jump))).timestamp()) * SECOND
        if shown == minute and not local.fold:
            return int(moment.timestamp()) * SECOND
        before = offset
        moment += timedelta(minutes=1)


@pytest.mark.parametrize("seed", range(60))
def test_times_of_day_match_a_model_that_checks_each_minute(seed: int) -> None:
    chance = random.Random(seed)
    day = chance.choice(["2026-03-28", "2026-03-29", "2026-10-24", "2026-10-25", "2026-07-01"])
    after = at(f"{day}T00:00:00+00:00") + chance.randrange(48 * 60) * MINUTE
    minute = chance.choice([chance.randrange(24 * 60), chance.randrange(120, 180)])
    assert next_time_of_day(minute, after, BERLIN) == _by_model(minute, after, BERLIN)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("22:00", BeginTime(minute=22 * 60)),
        ("+15m", BeginTime(delay=15 * MINUTE)),
        ("2026-11-27T13:00:00+01:00", BeginTime(moment=NOON)),
    ],
)
def test_start_times_have_three_forms(text: str, found: BeginTime) -> None:
    assert begin_time(text) == found


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        (
            "steward_not_before",
            "24:00",
            "must be a time of day such as 22:00, a date and time such as",
        ),
        ("steward_not_after", "2026-11-27T12:00:00", "must be a time of day such as 22:00, a dat"),
        ("steward_not_before", "+1y", "must be a duration like 30s or 1h"),
        ("steward_time_zone", "Mars/Base", "must be a name in the time zone database, such as"),
    ],
)
def test_invalid_times_have_an_error_with_a_fix(key: str, text: str, error: str) -> None:
    (found,) = key_problems(job("etl", group("a", meta={key: text}), type="batch"))
    assert error in found


@pytest.mark.parametrize(
    ("meta", "error"),
    [
        (
            {"steward_not_before": "22:00", "steward_not_after": "22:00"},
            "Task group a has the same steward_not_before and steward_not_after, "
            "so it can never begin",
        ),
        (
            {"steward_not_before": "+2h", "steward_not_after": "+1h"},
            "Task group a can never begin: steward_not_after is before steward_not_before",
        ),
        (
            {
                "steward_not_before": "2026-11-27T13:00:00Z",
                "steward_not_after": "2026-11-27T12:00:00Z",
            },
            "Task group a can never begin: steward_not_after is before steward_not_before",
        ),
        (
            {"steward_not_after": "+0s"},
            'Task group a can never begin: steward_not_after is "+0s"; '
            "write a longer delay, such as +15m",
        ),
        (
            {"steward_gate": "now?", "steward_gate_within": "0m"},
            'Task group a has steward_gate_within = "0m", so no person can approve it in time; '
            "write a longer duration, such as 1h",
        ),
        (
            {"steward_not_before": "+2h", "steward_time_zone": "Europe/Berlin"},
            "Task group a has steward_time_zone without a time of day in steward_not_before or "
            "steward_not_after",
        ),
    ],
)
def test_impossible_start_times_are_refused(meta: dict[str, str], error: str) -> None:
    assert list(problems(job("etl", group("a", meta=meta), type="batch"))) == [error]


def test_a_service_with_times_is_refused() -> None:
    service = job("web", group("a", meta={"steward_not_before": "22:00"}), type="service")
    with pytest.raises(Malformed, match="steward_not_before needs a job of type batch"):
        graph_of(service)


# --- runs ---

RUN = FlowRun(namespace="default", job_id="etl", number=1, version=0, began=NOON)


def test_step_waits_for_its_start_time() -> None:
    graph = Graph(steps=(timed_step("13:00"), Step(name="b")))
    early = advance(graph, RUN, {}, {}, now=NOON)
    (held, _) = early.steps
    assert (held.state, held.reason) == (StepState.HELD, "time: it begins at 2026-11-27T13:00:00Z")
    assert (early.wanted_steps, early.due_times) == ({"b"}, (NOON + HOUR,))
    assert changes_at(graph.by_name["a"], RUN, held) == NOON + HOUR
    steps = {one.name: one for one in early.steps}
    assert "a" not in advance(graph, RUN, steps, {}, now=NOON + HOUR - 1).wanted_steps
    assert "a" in advance(graph, RUN, steps, {}, now=NOON + HOUR).wanted_steps


def test_late_step_fails_and_is_named_by_its_run() -> None:
    graph = Graph(steps=(timed_step("", "+1h"), Step(name="b", needs=("a",))))
    waits = advance(graph, RUN, {}, {}, now=NOON, slot="slot: none is free")
    assert waits.due_times == (NOON + HOUR,)
    late = advance(graph, RUN, {one.name: one for one in waits.steps}, {}, now=NOON + HOUR)
    assert [(one.state, one.outcome) for one in late.steps] == [("skipped", Outcome.BAD)] * 2
    assert late.steps[0].reason == (
        "time: too late, because it had to begin before 2026-11-27T13:00:00Z"
    )
    assert (late.run.status, late.run.reason) == (
        FlowStatus.FAILED,
        "step a missed its time: it had to begin before 2026-11-27T13:00:00Z",
    )


def test_delay_counts_from_the_first_wait_of_the_step() -> None:
    graph = Graph(steps=(Step(name="a", gate="Go?", not_before=BeginTime(delay=HOUR)),))
    gated = advance(graph, RUN, {}, {}, now=NOON)
    steps = {one.name: one for one in gated.steps}
    early = advance(graph, RUN, steps, {}, now=NOON + MINUTE, approvals={"a": 1})
    assert early.steps[0].reason == "time: it begins at 2026-11-27T13:00:00Z"
    assert early.due_times == (NOON + HOUR,)


@pytest.mark.parametrize("limits", [("+2h", ""), ("", "+0s"), ("13:00", "")])
def test_cleanup_step_ignores_its_times(limits: tuple[str, str]) -> None:
    tidy = msgspec.structs.replace(timed_step(*limits), needs=("b",), when=When.ALWAYS)
    graph = Graph(steps=(tidy, Step(name="b")))
    begun = advance(graph, RUN, {}, {}, now=NOON)
    run = begun.run.stopping("canceled by ann", cleans_up=True)
    ended = advance(graph, run, {one.name: one for one in begun.steps}, {}, now=NOON)
    assert [one.state for one in ended.steps] == ["open", "canceled"]
    assert ended.wanted_steps == {"a"}


def test_freeze_delays_steps_after_their_start_times() -> None:
    graph = Graph(steps=(timed_step("13:00"),))
    early = advance(graph, RUN, {}, {}, now=NOON, freeze="freeze: release")
    assert early.steps[0].reason.startswith("time: ")
    steps = {one.name: one for one in early.steps}
    frozen = advance(graph, RUN, steps, {}, now=NOON + HOUR, freeze="freeze: release")
    assert (frozen.steps[0].state, frozen.steps[0].reason) == (StepState.HELD, "freeze: release")


LIMITS = RunLimits(timeout=HOUR, cleanup=10 * MINUTE)


def test_timeout_counts_from_the_first_started_step() -> None:
    graph = Graph(steps=(timed_step("13:00"),))
    early = advance(graph, RUN, {}, {}, now=NOON, limits=LIMITS)
    assert early.run.deadline == 0
    steps = {one.name: one for one in early.steps}
    opened = advance(graph, early.run, steps, {}, now=NOON + HOUR, limits=LIMITS)
    assert (opened.run.deadline, opened.due_times) == (NOON + 2 * HOUR, (NOON + 2 * HOUR,))


def test_timed_out_run_stops_and_starts_its_failure_steps() -> None:
    steps = (
        Step(name="a"),
        Step(name="b", needs=("a",)),
        Step(name="c", needs=("a",), when=When.FAILURE),
        Step(name="d", needs=("c",), when=When.ALWAYS),
    )
    graph = Graph(steps=steps)
    begun = advance(graph, RUN, {}, {}, now=NOON, limits=LIMITS)
    known = {one.name: one for one in begun.steps}
    assert timed(begun.run, LIMITS, NOON + HOUR - 1) == begun.run
    run = timed(begun.run, LIMITS, NOON + HOUR)
    assert (run.status, run.reason) == ("stopping", "timeout: the run took longer than 1h0m0s")
    ends = advance(graph, run, known, {}, now=NOON + HOUR, alive={"a"})
    assert [one.state for one in ends.steps] == ["open", "canceled", "waiting", "waiting"]
    assert ends.wanted_steps == frozenset()
    known = {one.name: one for one in ends.steps}
    handled = advance(graph, ends.run, known, {}, now=NOON + HOUR + SECOND)
    assert [one.state for one in handled.steps] == ["canceled", "canceled", "open", "waiting"]
    assert (handled.wanted_steps, handled.due_times) == ({"c"}, (NOON + HOUR + 10 * MINUTE,))
    stopped = timed(handled.run, LIMITS, NOON + HOUR + 10 * MINUTE)
    assert (stopped.status, stopped.cleans_up) == (FlowStatus.STOPPING, False)


def test_canceled_run_starts_no_failure_steps() -> None:
    graph = Graph(
        steps=(Step(name="a"), Step(name="b", needs=("a",), when=When.FAILURE)),
    )
    begun = advance(graph, RUN, {}, {}, now=NOON)
    run = timed(begun.run.stopping("canceled by ann", cleans_up=True), LIMITS, NOON)
    assert run.deadline == NOON + 10 * MINUTE
    ended = advance(graph, run, {one.name: one for one in begun.steps}, {}, now=NOON)
    assert [one.state for one in ended.steps] == ["canceled", "canceled"]
    assert ended.run.status == FlowStatus.CANCELED


def test_delay_counts_from_the_end_of_the_needs() -> None:
    late = msgspec.structs.replace(timed_step("+1h", "+2h"), needs=("b",))
    graph = Graph(steps=(late, Step(name="b")))
    begun = advance(graph, RUN, {}, {}, now=NOON)
    steps = {one.name: one for one in begun.steps}
    held = advance(graph, RUN, steps, {"b": Elements(good=1)}, now=NOON + 30 * MINUTE)
    assert held.steps[0].reason == "time: it begins at 2026-11-27T13:30:00Z"
    assert held.due_times == (NOON + 90 * MINUTE, NOON + 150 * MINUTE)


def test_step_that_is_not_held_needs_no_decision_at_its_time() -> None:
    later = msgspec.structs.replace(timed_step("13:00", "15:00"), needs=("b",))
    graph = Graph(steps=(later, Step(name="b")))
    begun = advance(graph, RUN, {}, {}, now=NOON)
    assert begun.due_times == ()
    assert changes_at(later, RUN, begun.steps[0]) is None


def test_held_step_changes_at_its_next_limit() -> None:
    step = timed_step("13:00", "15:00")
    graph = Graph(steps=(step,))
    early = advance(graph, RUN, {}, {}, now=NOON)
    assert changes_at(step, RUN, early.steps[0]) == NOON + HOUR
    rows = {one.name: one for one in early.steps}
    queued = advance(graph, RUN, rows, {}, now=NOON + HOUR, slot="slot: none is free")
    assert changes_at(step, RUN, queued.steps[0]) == NOON + 3 * HOUR
    ended = msgspec.structs.replace(RUN, status=FlowStatus.FAILED)
    assert changes_at(step, ended, queued.steps[0]) is None


def test_gate_changes_at_its_deadline() -> None:
    step = Step(name="a", gate="Go?", within=HOUR, not_after=BeginTime(delay=2 * HOUR))
    (held,) = advance(Graph(steps=(step,)), RUN, {}, {}, now=NOON).steps
    assert changes_at(step, RUN, held) == NOON + HOUR
    endless = msgspec.structs.replace(step, within=None)
    assert changes_at(endless, RUN, held) is None
