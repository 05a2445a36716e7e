"""Keys in the meta of a task group or a task: the steps of workflows and their results."""

import math
from typing import Any

from daemon.jobspec.steward_meta.key import (
    Meta,
    MetaExtension,
    calendar_name,
    flag,
    names,
    number,
    one_of,
    span,
)
from daemon.jobspec.steward_meta.step_values import (
    LIST,
    Allowance,
    BeginTime,
    ExitCodes,
    GateElse,
    OnFailure,
    When,
    allowance,
    approvers,
    begin_time,
    check_names,
    condition,
    exit_codes,
    for_each,
    is_output,
    matrix,
    outputs,
    patterns,
    question,
    read_nested,
    step_queues,
    zone_name,
)
from storage.records import flow
from storage.records.base import HOUR
from storage.records.periodic import OF_GROUP

NEEDS = MetaExtension[tuple[str, ...]](
    name="steward_needs", place="task group", read=names, default=()
)
WHEN = MetaExtension(
    name="steward_when", place="task group", read=one_of(When), default=When.SUCCESS
)
IF = MetaExtension(name="steward_if", place="task group", read=condition, default="")

PARALLEL = MetaExtension[int | None](
    name="steward_parallel", place="task group", read=number(1, 10_000), default=None
)
FAILURES_ALLOWED = MetaExtension(
    name="steward_failures_allowed", place="task group", read=allowance, default=Allowance()
)
ON_FAILURE = MetaExtension(
    name="steward_on_failure",
    place="task group",
    read=one_of(OnFailure),
    default=OnFailure.GO_ON,
)
GATE = MetaExtension(name="steward_gate", place="task group", read=question, default="")
GATE_NUMBER = MetaExtension(
    name="steward_gate_number", place="task group", read=number(1, 20), default=1
)
GATE_BY = MetaExtension[tuple[str, ...]](
    name="steward_gate_by", place="task group", read=approvers, default=()
)
GATE_NOT_SELF = MetaExtension(
    name="steward_gate_not_self", place="task group", read=flag, default=False
)
GATE_WITHIN = MetaExtension[int | None](
    name="steward_gate_within", place="task group", read=span(8760 * HOUR), default=None
)
GATE_ELSE = MetaExtension(
    name="steward_gate_else", place="task group", read=one_of(GateElse), default=GateElse.REJECT
)
NOT_BEFORE = MetaExtension[BeginTime | None](
    name="steward_not_before", place="task group", read=begin_time, default=None
)
NOT_AFTER = MetaExtension[BeginTime | None](
    name="steward_not_after", place="task group", read=begin_time, default=None
)
TIME_ZONE = MetaExtension(
    name="steward_time_zone", place="task group", read=zone_name, default="UTC"
)
RETRY_EXIT_CODES = MetaExtension[ExitCodes](
    name="steward_retry_exit_codes", place="task group", read=exit_codes, default=()
)
FOR_EACH = MetaExtension(
    name="steward_for_each", place="task group", read=for_each, default="", check=check_names
)
MATRIX = MetaExtension[dict[str, list[object]]](
    name="steward_matrix", place="task group", read=matrix, default={}, check=check_names
)
REDO = MetaExtension(name="steward_redo", place="task group", read=flag, default=False)
OUTPUTS = MetaExtension[tuple[str, ...]](
    name="steward_outputs", place="task group", read=outputs, default=()
)
KEEP = MetaExtension[tuple[str, ...]](
    name="steward_keep", place="task group or task", read=patterns, default=()
)

CALENDAR = MetaExtension(name=OF_GROUP, place="task group", read=calendar_name, default="")
STEP_QUEUES = MetaExtension[tuple[str, ...]](
    name=flow.STEP_QUEUES, place="task group", read=step_queues, default=()
)
STEP_SLOTS = MetaExtension(
    name="steward_concurrency_slots", place="task group", read=number(1, 10_000), default=1
)


def list_length(meta: Meta) -> int | None:
    """Return the length of the list in the meta of a group; None without a list.

    Return 0 if the list is an output of another step, or is not valid.
    """
    if FOR_EACH.name not in (meta or ()) and MATRIX.name not in (meta or ()):
        return None
    if matrix := MATRIX.of(meta):
        return math.prod(map(len, matrix.values()))
    text = FOR_EACH.of(meta)
    return len(read_nested(LIST, text)) if text and not is_output(text) else 0


STEP_KEYS: tuple[MetaExtension[Any], ...] = (
    NEEDS,
    WHEN,
    IF,
    PARALLEL,
    FAILURES_ALLOWED,
    ON_FAILURE,
    GATE,
    GATE_NUMBER,
    GATE_BY,
    GATE_NOT_SELF,
    GATE_WITHIN,
    GATE_ELSE,
    NOT_BEFORE,
    NOT_AFTER,
    TIME_ZONE,
    RETRY_EXIT_CODES,
    FOR_EACH,
    MATRIX,
    REDO,
    OUTPUTS,
    KEEP,
    CALENDAR,
    STEP_QUEUES,
    STEP_SLOTS,
)
