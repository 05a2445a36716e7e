"""Turn ended runs into dispatches of the jobs that follow them.

The write that ends a run has added a row for each follower (`storage/queries/triggers.py`).
`follow_triggers` decides about each row in the write that dispatches the child. So each ended run
starts a follower exactly once, even if the daemon is killed in between.
"""

import re
from collections.abc import Iterator
from functools import partial

import msgspec

from daemon.clock import Clock, wait_until
from daemon.config.data_directory import payloads_beside
from daemon.fences import TOPIC, Fences
from daemon.jobs.dispatch import ChildDispatcher, DispatchRequestData, check
from daemon.jobspec.budgets import Budgets
from daemon.jobspec.steward_meta.job_keys import (
    AFTER_JOIN,
    AFTER_KEY,
    AFTER_META,
    AFTER_WITHIN,
    PASSED,
)
from storage.errors import Invalid, Malformed, Refused, TooOften
from storage.queries import jobs, notifications, runs, triggers
from storage.read_pool import ReadSnapshot
from storage.records.flow import ARRIVED, Source, TriggerJoin
from storage.records.job import Job
from storage.records.notification import NotifyEvent, notify_settings
from storage.records.trigger import MOST_DEPTH, JobTrigger, TriggerState
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_FENCED = "trigger"
_AT_ONCE = 32
_SUFFIX = 8  # characters that make a child's ID unique within its second


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """The meta that an ended run passes to one version of the follower.

    `value` is the value of the meta key by which the follower combines runs of several sources:
    runs with different values are not combined. If `fault` is set, it is the reason why the
    dispatch is refused.
    """

    version: int
    meta: dict[str, str] = {}
    value: str = ""
    fault: str = ""


async def follow_triggers(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, budgets: Budgets
) -> None:
    """Decide about ended runs as they arrive, and expire runs that wait too long."""
    while True:
        with store.watch(ARRIVED, TOPIC) as change:
            paused, now = fences.paused_keys(_FENCED), clock.now()
            most = _AT_ONCE + len(paused)
            followed = [
                trigger
                for trigger in (
                    *store.read(partial(triggers.undecided, most=most)),
                    *store.read(partial(triggers.expired, now=now, most=most)),
                )
                if str(trigger.id) not in paused
            ]
            if not followed:
                times = (store.read(triggers.next_expiry), fences.next_time(_FENCED))
                await wait_until(min(filter(None, times), default=None), clock, change)
                continue
        async with tolerate_disk_full("cannot start the followers of ended runs"):
            for trigger in followed:
                with fences.around(_FENCED, str(trigger.id)):
                    await _decide(store, trigger, clock.now(), ids, budgets)


async def _decide(
    store: Store, trigger: JobTrigger, now: int, ids: Iterator[str], budgets: Budgets
) -> None:
    if trigger.state == TriggerState.WAITING:
        await store.write(partial(expire, trigger_id=trigger.id, now=now))
        return
    passed = await store.read_any(partial(passed_on, trigger=trigger))
    if passed is not None:
        means = Means(now=now, ids=ids, budgets=budgets, payloads=payloads_beside(store.path))
        await store.write(
            partial(decide, trigger_id=trigger.id, passed_sources=passed, means=means)
        )


# --- values ---


def passed_on(db: ReadSnapshot, trigger: JobTrigger) -> Passed | None:
    """Return the meta that an ended run passes on; None if the follower no longer exists."""
    follower = jobs.current(db, trigger.namespace, trigger.job_id)
    if follower is None:
        return None
    texts, key = AFTER_META.of(follower.meta), AFTER_KEY.of(follower.meta)
    facts = _Facts(db, trigger)
    try:
        value = facts.meta(key) if key else ""
        meta = {name: PASSED.sub(facts.text, text) for name, text in texts.items()}
    except _Gone as error:
        return Passed(version=follower.version, fault=str(error))
    return Passed(version=follower.version, meta=meta, value=value)


class _Gone(Exception):
    """The run of a source can no longer be read; the message is the reason."""


class _Facts:
    """The values of the references in a follower's meta. A value is read only when needed."""

    def __init__(self, db: ReadSnapshot, trigger: JobTrigger) -> None:
        self._db, self._trigger = db, trigger
        self._loaded: Job | None = None
        self._outputs: dict[str, str] = {}

    def _job(self) -> Job:
        trigger = self._trigger
        if self._loaded is None:
            self._loaded = jobs.version(
                self._db, trigger.source_namespace, trigger.run_job_id, trigger.version
            )
        if self._loaded is None:
            raise _Gone(f"{_name_of(trigger)} was deleted before its values could be read")
        return self._loaded

    def meta(self, name: str) -> str:
        """Return a value from the meta of the run's job; empty if the job has no such key."""
        return (self._job().meta or {}).get(name, "")

    def text(self, match: re.Match[str]) -> str:
        """Return the value of a reference as text."""
        trigger = self._trigger
        if (name := match["meta"]) is not None:
            return self.meta(name)
        if (name := match["run"]) is not None:
            return {
                "job": trigger.run_job_id,
                "namespace": trigger.source_namespace,
                "number": str(trigger.number),
                "status": trigger.status,
            }[name]
        if match[0] not in self._outputs:
            self._outputs[match[0]] = self._output(match)
        return self._outputs[match[0]]

    def _output(self, match: re.Match[str]) -> str:
        from daemon.flow import lists, outputs  # imported late: few followers read outputs

        trigger, group = self._trigger, lists.resolved_group(self._job(), match["step"])
        run = runs.find(self._db, trigger.source_namespace, trigger.run_job_id, trigger.number)
        if run is not None and run.attempt != trigger.attempt:
            raise _Gone(f"{_name_of(trigger)} runs again, so its outputs cannot be read")
        step = runs.step(self._db, run, match["step"]) if run is not None else None
        if run is None or step is None or group is None:  # the step belongs to another source
            return ""
        element = int(match["element"]) if match["element"] else None
        return outputs.value(
            lists.Reference(match["step"], match["name"], element),
            runs.outputs(self._db, run, step.name),
            total=step.total,
            is_list=lists.is_array(group),
        )


def _name_of(trigger: JobTrigger) -> str:
    return f'run {trigger.number} of "{trigger.source_namespace}/{trigger.run_job_id}"'


# --- decisions ---


def expire(tx: Transaction, trigger_id: int, now: int) -> None:
    """Expire an ended run that has waited too long for the other sources."""
    trigger, follower = _find(tx, trigger_id, TriggerState.WAITING)
    if trigger is None or follower is None or trigger.expires > now:
        return
    joined_sources = {_source_of(row) for row in _joined(tx, trigger)}
    missing = [
        str(source)
        for source in triggers.sources(tx, trigger.namespace, trigger.job_id)
        if source not in joined_sources
    ]
    reason = f"{', '.join(missing[:3]) or 'the other sources'} did not end in time"
    _end(tx, follower, trigger, TriggerState.EXPIRED, reason, now)


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """The limits, IDs and time of a decision; `payloads` is the directory of input files."""

    now: int
    ids: Iterator[str]
    budgets: Budgets
    payloads: str


def decide(tx: Transaction, trigger_id: int, passed_sources: Passed, means: Means) -> None:
    """Dispatch the follower of an ended run, let the run wait for other sources, or refuse it.

    If the follower has changed since `passed_sources` was read, nothing happens, and the loop
    retries.
    """
    trigger, follower = _find(tx, trigger_id, TriggerState.ARRIVED)
    if trigger is None or follower is None or follower.version != passed_sources.version:
        return
    sources = triggers.sources(tx, trigger.namespace, trigger.job_id)
    if fault := _fault(trigger, passed_sources, sources):
        _end(tx, follower, trigger, TriggerState.REFUSED, fault, means.now)
        return
    trigger = msgspec.structs.replace(trigger, value=passed_sources.value)
    joins = AFTER_JOIN.of(follower.meta) == TriggerJoin.ALL
    ready = _others(tx, follower, trigger, means.now) if joins else {}
    ready[_source_of(trigger)] = (trigger, passed_sources.meta)
    if joins and not {*sources} <= ready.keys():
        expires = means.now + AFTER_WITHIN.of(follower.meta)
        waits = msgspec.structs.replace(trigger, state=TriggerState.WAITING, expires=expires)
        triggers.put(tx, waits, passed_sources.meta)
        return
    _dispatch_follower(tx, follower, [ready[name] for name in sources if name in ready], means)


def _fault(trigger: JobTrigger, passed_sources: Passed, sources: list[Source]) -> str:
    """Return why an ended run cannot start its follower; empty if it can."""
    if _source_of(trigger) not in sources:
        return f"the job no longer follows {_source_of(trigger)}"
    if trigger.depth > MOST_DEPTH:
        return (
            f"the chain of jobs has {trigger.depth - 1} runs already; the maximum is {MOST_DEPTH}"
        )
    return passed_sources.fault


_Ready = tuple[JobTrigger, dict[str, str]]  # an ended run, and the meta that it passes on


def _others(tx: Transaction, follower: Job, trigger: JobTrigger, now: int) -> dict[Source, _Ready]:
    """Return the ended runs that wait to be combined with the run of `trigger`, by source.

    If earlier runs of the same source also wait, mark them as replaced.
    """
    result: dict[Source, _Ready] = {}
    for row in _joined(tx, trigger):
        if _source_of(row) == _source_of(trigger):
            reason = f"{_name_of(trigger)} ended later"
            _end(tx, follower, row, TriggerState.REPLACED, reason, now)
        else:
            result[_source_of(row)] = (row, triggers.meta_of(tx, row.id))
    return result


def _dispatch_follower(tx: Transaction, follower: Job, chosen: list[_Ready], means: Means) -> None:
    """Dispatch the follower for ended runs, in the order of its sources."""
    meta: dict[str, str] = {}
    for _, texts in chosen:  # if several runs pass a value, the first text that is not empty counts
        meta |= {name: text for name, text in texts.items() if not meta.get(name)}
    state, reason, child_id = TriggerState.FIRED, "", ""
    try:
        child_id = _dispatch(tx, follower, DispatchRequestData(payload=b"", meta=meta), means)
    except (Refused, Invalid, Malformed, TooOften) as error:
        state, reason = TriggerState.REFUSED, str(error)
    depth = max(row.depth for row, _ in chosen)
    for number, (row, _) in enumerate(chosen):
        done = msgspec.structs.replace(row, child_id=child_id, depth=depth)
        _end(tx, follower, done, state, reason, means.now, is_told=not number)


def _dispatch(tx: Transaction, follower: Job, request: DispatchRequestData, means: Means) -> str:
    """Store a child, and return its ID."""
    check(follower, request)
    children = ChildDispatcher(
        tx,
        follower,
        budgets=means.budgets,
        now=means.now,
        ids=means.ids,
        payloads=means.payloads,
    )
    done = children.dispatch(request, next(means.ids)[:_SUFFIX])
    children.close()
    return done.job_id


def _source_of(trigger: JobTrigger) -> Source:
    return Source(trigger.source_namespace, trigger.source_id)


def _find(
    tx: Transaction, trigger_id: int, state: TriggerState
) -> tuple[JobTrigger | None, Job | None]:
    trigger = triggers.find(tx, trigger_id)
    if trigger is None or trigger.state != state:
        return None, None
    return trigger, jobs.current(tx, trigger.namespace, trigger.job_id)


def _joined(tx: Transaction, trigger: JobTrigger) -> list[JobTrigger]:
    return triggers.waiting(tx, trigger.namespace, trigger.job_id, trigger.value)


def _end(
    tx: Transaction,
    follower: Job,
    trigger: JobTrigger,
    state: TriggerState,
    reason: str,
    now: int,
    *,
    is_told: bool = True,
) -> None:
    """Store the final state of a trigger.

    If the run was refused or has expired, notify the follower, unless `is_told` is false.
    """
    done = msgspec.structs.replace(trigger, state=state, reason=reason, decided=now, expires=0)
    triggers.put(tx, done)
    settings = notify_settings(follower.meta)
    if settings is None or not is_told:
        return
    if state in (TriggerState.REFUSED, TriggerState.EXPIRED):
        text = f"{_name_of(trigger)} did not start it: {reason}"
        key = (trigger.namespace, trigger.job_id)
        notifications.add(
            tx, key, settings, NotifyEvent.MISSED, run_id=trigger.job_id, reason=text, now=now
        )
