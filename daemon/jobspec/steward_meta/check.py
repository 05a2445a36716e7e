"""The table of all keys, and the errors of the keys in a job."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from daemon.jobspec.steward_meta.job_keys import (
    AFTER,
    AFTER_JOIN,
    AFTER_KEY,
    AFTER_META,
    AFTER_WHEN,
    AFTER_WITHIN,
    JOB_KEYS,
    NOTIFY,
    NOTIFY_COMMAND,
    NOTIFY_TO,
    NOTIFY_WEBHOOK,
    RUN_BEYOND,
    RUN_CALENDAR,
    RUN_CALENDAR_ELSE,
    RUN_CLEANUP,
    RUN_DAY,
    RUN_ON_FAILURE,
    RUN_PARALLEL,
    RUN_QUEUE,
    RUN_SLOTS,
    RUN_TIMEOUT,
    RUN_UPDATE,
)
from daemon.jobspec.steward_meta.key import (
    LONGEST_QUEUE,
    PREFIX,
    QUEUE_LETTERS,
    SHOWN,
    Meta,
)
from daemon.jobspec.steward_meta.step_keys import STEP_KEYS
from daemon.text.go_format import quote
from storage.errors import Invalid
from storage.records.flow import TriggerJoin, resolved_queue
from storage.records.job import Job, JobType

if TYPE_CHECKING:
    from daemon.text.hints import Hints

MAX_SHOWN = 200  # characters of an invalid value that an error repeats completely

EXTENSIONS = (*JOB_KEYS, *STEP_KEYS)
_BY_NAME = {extension.name: extension for extension in EXTENSIONS}
_STEMS = [name.removeprefix(PREFIX) for name in _BY_NAME]


def problems(job: Job) -> Iterator[str]:
    """Yield the errors of a job's Steward keys."""
    from daemon.text.hints import Hints  # imported late: a start checks no job

    hints = Hints()
    yield from _in("job", "", job.meta, hints)
    yield from _without_channels(job.meta or {})
    yield from _from_dispatches(job)
    yield from _after(job)
    yield from _without_schedule(job)
    yield from _queue(job)
    yield from _without_runs(job)
    for group in job.task_groups or ():
        yield from _in("task group", group.name, group.meta, hints)
        for task in group.tasks or ():
            yield from _in("task", task.name, task.meta, hints)


def _without_channels(meta: Mapping[str, str]) -> Iterator[str]:
    keys = (NOTIFY_TO.name, NOTIFY_WEBHOOK.name, NOTIFY_COMMAND.name)
    if NOTIFY.name in meta and not any(key in meta for key in keys):
        yield f"Meta of job: {quote(NOTIFY.name)} has no receiver; add {' or '.join(map(quote, keys))}"


def _queue(job: Job) -> Iterator[str]:
    """Yield the errors of queue keys that depend on other keys or on the job."""
    meta = job.meta or {}
    for meta_key in (RUN_SLOTS, RUN_BEYOND):
        if meta_key.name in meta and RUN_QUEUE.name not in meta:
            yield f"{meta_key.name} needs {RUN_QUEUE.name}"
    if RUN_QUEUE.name in meta and job.type != JobType.BATCH:
        yield f"{RUN_QUEUE.name} needs a job of type batch"
    # A dispatch may provide the meta that the job does not have.
    if job.parameterized_job is None or job.dispatched:
        yield from queue_name_problems(meta)


def queue_name_problems(meta: Mapping[str, str]) -> Iterator[str]:
    """Yield an error if the queue of a job, with the meta inserted, is not a valid queue name."""
    text = RUN_QUEUE.of(meta)
    name = resolved_queue(text, meta)
    if text and not QUEUE_LETTERS.fullmatch(name):
        yield (
            f"{RUN_QUEUE.name} is {quote(text)}, which results in {quote(name[:SHOWN])}; "
            + (f"a queue has a name of 1 to {LONGEST_QUEUE} letters, digits, -, _ and .")
        )


def _without_runs(job: Job) -> Iterator[str]:
    """Yield an error for each key about runs, if the job cannot be a workflow."""
    if job.type == JobType.BATCH:
        return
    for key in (RUN_TIMEOUT, RUN_CLEANUP, RUN_PARALLEL, RUN_ON_FAILURE, RUN_UPDATE):
        if key.name in (job.meta or {}):
            yield f"{key.name} needs a job of type batch"


def _after(job: Job) -> Iterator[str]:
    """Yield the errors of trigger keys that depend on other keys or on the job."""
    meta, block = job.meta or {}, job.parameterized_job
    keys = (AFTER, AFTER_WHEN, AFTER_JOIN, AFTER_KEY, AFTER_WITHIN, AFTER_META)
    present = [key.name for key in keys if key.name in meta]
    if not present or job.dispatched:
        return
    if AFTER.name not in meta:
        yield f"{present[0]} needs {AFTER.name}"
    if block is None or job.type != JobType.BATCH:
        yield f"{AFTER.name} needs a parameterized job"
        return
    if AFTER_JOIN.of(meta) != TriggerJoin.ALL:
        for meta_key in (AFTER_KEY, AFTER_WITHIN):
            if meta_key.name in meta:
                yield f'{meta_key.name} needs {AFTER_JOIN.name} = "{TriggerJoin.ALL}"'
    passed, required = AFTER_META.of(meta), block.meta_required or ()
    if unknown := sorted(passed.keys() - {*required, *(block.meta_optional or ())}):
        yield (
            f"{AFTER_META.name} names {quote(unknown[0][:SHOWN])}, "
            "which is in neither meta_required nor meta_optional"
        )
    if missing := sorted({*required} - passed.keys()):
        yield f"{AFTER_META.name} lacks {quote(missing[0])}, which meta_required lists"
    if block.payload == "required":
        yield f"{AFTER.name} passes no payload, but the job requires one"


def _from_dispatches(job: Job) -> Iterator[str]:
    """Yield an error for each Steward key among the meta keys that dispatches may set."""
    block = job.parameterized_job
    for name in (*(block.meta_required or ()), *(block.meta_optional or ())) if block else ():
        if name.startswith(PREFIX):
            yield f"Parameterized job: a dispatch cannot set {quote(name)}; write it in the job"


def _without_schedule(job: Job) -> Iterator[str]:
    """Yield an error for each key about slots, if the job has no schedule."""
    if job.periodic is not None:
        return
    for key in (RUN_CALENDAR.name, RUN_CALENDAR_ELSE.name, RUN_DAY.name):
        if key in (job.meta or {}) and not job.parent_id:
            yield f"Meta of job: {quote(key)} needs a job with a periodic block"


def _in(level: str, name: str, meta: Meta, hints: "Hints") -> Iterator[str]:
    where = f"{level} {quote(name)}" if name else level
    keys_by_name = _BY_NAME
    for key, text in (meta or {}).items():
        if not key.startswith(PREFIX) and key.lower() not in keys_by_name:
            continue
        extension = keys_by_name.get(key)
        if extension is None:
            yield f"Meta of {where}: unknown key {quote(key)}{_nearest(key, hints)}"
        elif level not in extension.place.split(" or "):
            yield f"Meta of {where}: {quote(key)} belongs in the meta of a {extension.place}"
        else:
            try:
                extension.read(text)
                if extension.check is not None:
                    extension.check(text)
            except Invalid as error:
                yield f"Meta of {where}: {quote(key)} is {_shown(text)}, {error}"


def _shown(text: str) -> str:
    """Return an invalid value in quotes. Shorten a long value, and append its length."""
    if len(text) <= MAX_SHOWN:
        return quote(text)
    return f"{quote(text[:SHOWN])}... ({len(text)} characters)"


def _nearest(key: str, hints: "Hints") -> str:
    """Return a suggestion for an unknown key.

    The keys are compared without their common prefix, which would make all of them similar.
    """
    stem = hints.closest(key.lower().removeprefix(PREFIX), _STEMS)
    return f"; did you mean {quote(PREFIX + stem)}?" if stem else ""
