"""The workflow of a planned job as lines of text: its chains of steps, queues and calendars."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from daemon.text.go_format import quote
from daemon.text.placement_message import count_noun
from storage.records.flow import GraphStep, PlannedCalendar, PlannedFlow, PlannedQueue

_MOST_LINES = 40  # of chains
_LONGEST = 6  # steps on one line
_MOST_NEEDS = 6  # needs that a line repeats
_WHEN = {"failure": "on failure", "always": "always"}


def picture(flow: PlannedFlow, now: datetime) -> Iterator[str]:
    """Yield a heading, the chains of steps, and the state of the queues and calendars.

    A time shows its year only if that differs from the year of `now`.
    """
    steps, levels = count_noun(len(flow.steps), "step"), count_noun(len(flow.levels), "level")
    yield f'job "{flow.job_id}": {steps} in {levels}; {len(flow.ready)} can begin now'
    by_name = {step.name: step for step in flow.steps}
    shown = 0
    for chain in _chains([by_name[name] for name in flow.order])[:_MOST_LINES]:
        yield f"    {_line(chain)}"
        shown += len(chain)
    if shown < len(flow.steps):
        yield f"    {count_noun(len(flow.steps) - shown, 'more step')}"
    for queue in flow.queues:
        yield f"    {_queue(queue)}"
    for calendar in flow.calendars:
        yield f"    {_calendar(calendar, now)}"


def _chains(steps: Sequence[GraphStep]) -> list[list[GraphStep]]:
    """Return the steps as chains; `steps` is in dependency order.

    A step continues a chain if it needs only the last step of that chain and does not handle a
    failure. Long chains are split.
    """
    chains, ending = list[list[GraphStep]](), dict[str, list[GraphStep]]()
    for step in steps:
        chain = ending.pop(step.needs[0], None) if _continues(step, ending) else None
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(step)
        ending[step.name] = chain
    return chains


def _continues(step: GraphStep, ending: dict[str, list[GraphStep]]) -> bool:
    return (
        len(step.needs) == 1
        and step.when != "failure"
        and len(ending.get(step.needs[0], ())) < _LONGEST
    )


def _line(chain: Sequence[GraphStep]) -> str:
    """Return a line: the steps that the first step of a chain needs, then the chain."""
    before, more = chain[0].needs[:_MOST_NEEDS], len(chain[0].needs) - _MOST_NEEDS
    needs = f"{', '.join(before)}{f' and {more} more' if more > 0 else ''}"
    return " -> ".join([*([needs] if needs else []), *map(_shown, chain)])


def _shown(step: GraphStep) -> str:
    """Return a step with its number of elements and the conditions under which it begins."""
    marks, size = _marks(step), ""
    if step.each_of:
        size = " x="
    elif step.elements_of:
        size, marks = " x", [f"list of {step.elements_of}", *marks]
    elif step.count != 1:
        size = f" x{step.count}"
    return f"{step.name}{size} ({', '.join(marks)})" if marks else f"{step.name}{size}"


def _marks(step: GraphStep) -> list[str]:
    slots = "" if step.slots == 1 else f"{step.slots} slots of "
    marks = [
        f"{step.parallel} at a time" if step.parallel else "",
        _WHEN.get(step.when, ""),
        "condition" if step.condition else "",
        _gate(step),
        f"not before {step.not_before}" if step.not_before else "",
        f"not after {step.not_after}" if step.not_after else "",
        f"calendar {quote(step.calendar)}" if step.calendar else "",
        *(f"{slots or 'slot of '}{quote(name)}" for name in step.queues),
    ]
    return list(filter(None, marks))


def _gate(step: GraphStep) -> str:
    if not step.gate:
        return ""
    return "gate" if step.approvals == 1 else f"gate with {step.approvals} approvals"


def _queue(queue: PlannedQueue) -> str:
    number = "" if queue.exists else " (1 by default)"
    waiting = f", {queue.waiting} waiting" if queue.waiting else ""
    return f"slot of {quote(queue.name)}: {queue.in_use} of {queue.slots} in use{number}{waiting}"


def _calendar(calendar: PlannedCalendar, now: datetime) -> str:
    name = f"calendar {quote(calendar.name)}"
    if calendar.is_open:
        return f"{name}: open now"
    if calendar.next_opening:
        return f"{name}: next open {_moment(calendar.next_opening, now)}"
    if calendar.searched_until:
        return f"{name}: closed until at least {_moment(calendar.searched_until, now)}"
    return f"{name}: {calendar.reason}"


def _moment(text: str, now: datetime) -> str:
    """Return a time (RFC 3339) in its own time zone, such as `Tue 24 Nov 02:00`."""
    moment = datetime.fromisoformat(text)
    year = "" if moment.year == now.year else " %Y"
    return moment.strftime(f"%a %d %b{year} %H:%M")
