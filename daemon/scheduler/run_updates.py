"""The steps that the run of a new version takes over from the canceled run of an earlier version.

This applies to jobs with `steward_run_update = "keep"`.
"""

from collections.abc import Mapping

from daemon.flow.graph import again, stored_graph
from daemon.flow.run_updates import without_own_keys
from daemon.scheduler.updates import requires_replacement
from storage.records.flow import Outcome, RunStep
from storage.records.job import Job


def taken_over(before: Job, after: Job, rows: Mapping[str, RunStep]) -> tuple[str, ...]:
    """Return the steps that do not run again, in the order of the new version.

    `rows` are the steps of the earlier run. A step is taken over if it ended with the outcome
    `good` or `neutral`, and neither its definition nor that of a step before it has changed. All
    steps before it are also taken over. A step with `steward_redo` runs again if a later step that
    depends on it runs again.
    """
    earlier, later = stored_graph(before), stored_graph(after)
    before, after = without_own_keys(before), without_own_keys(after)
    changed = {
        step.name
        for step in later.steps
        if (row := rows.get(step.name)) is None
        or row.outcome not in (Outcome.GOOD, Outcome.NEUTRAL)
        or earlier.by_name.get(step.name) != step
        or _group_meta(before, step.name) != _group_meta(after, step.name)
        or requires_replacement(before, after, step.name)
    }
    rerun = again(later, changed)
    return tuple(step.name for step in later.steps if step.name not in rerun)


def _group_meta(job: Job, name: str) -> Mapping[str, str]:
    group = job.group(name)
    return (group.meta if group else None) or {}
