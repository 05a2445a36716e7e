"""Validation of a group's policies: restart, reschedule, update, migrate and disconnect."""

from collections.abc import Iterator

from daemon.text.go_format import duration, quote
from storage.records.base import SECOND
from storage.records.group import (
    DelayFunction,
    Disconnect,
    Migrate,
    ReschedulePolicy,
    Update,
)
from storage.records.job import JobType
from storage.records.task import RestartPolicy

MIN_RESTART_INTERVAL = 5 * SECOND
MIN_RESCHEDULE_INTERVAL = 15 * SECOND
MIN_RESCHEDULE_DELAY = 5 * SECOND

_DELAY_FUNCTIONS = frozenset(DelayFunction)
_RECONCILE = frozenset({"", "best_score", "longest_running", "keep_original", "keep_replacement"})


def restart(policy: RestartPolicy) -> Iterator[str]:
    """Yield the errors of a restart policy."""
    if policy.mode not in ("delay", "fail"):
        yield f"Unsupported restart mode: {quote(policy.mode)}"
    if policy.attempts == 0 and policy.mode != "fail":
        yield f"Restart policy {quote(policy.mode)} with 0 attempts is ambiguous"
    if policy.interval < MIN_RESTART_INTERVAL:
        least, interval = duration(MIN_RESTART_INTERVAL), duration(policy.interval)
        yield f"Interval can not be less than {least} (got {interval})"
    if policy.attempts * policy.delay > policy.interval:
        yield (
            f"Nomad can't restart the TaskGroup {policy.attempts} times in an interval of "
            f"{duration(policy.interval)} with a delay of {duration(policy.delay)}"
        )


# --- reschedule ---


def reschedule(policy: ReschedulePolicy) -> Iterator[str]:
    """Yield the errors of an enabled reschedule policy."""
    if policy.attempts <= 0 and not policy.unlimited:
        return
    yield from _attempts(policy)
    delay_faults = list(_delay(policy))
    yield from delay_faults
    if policy.unlimited:
        return
    if policy.interval < MIN_RESCHEDULE_INTERVAL:
        least, interval = duration(MIN_RESCHEDULE_INTERVAL), duration(policy.interval)
        yield f"Interval cannot be less than {least} (got {interval})"
    if not delay_faults:
        yield from _check_interval(policy)


def _attempts(policy: ReschedulePolicy) -> Iterator[str]:
    if policy.attempts <= 0:
        return
    if policy.interval <= 0:
        yield "Interval must be a non zero value if Attempts > 0"
    if policy.unlimited:
        yield (
            f"Reschedule Policy with Attempts = {policy.attempts}, "
            f"Interval = {duration(policy.interval)}, and Unlimited = true is ambiguous"
        )
        yield "If Attempts >0, Unlimited cannot also be set to true"


def _delay(policy: ReschedulePolicy) -> Iterator[str]:
    least, delay = duration(MIN_RESCHEDULE_DELAY), duration(policy.delay)
    if policy.delay < MIN_RESCHEDULE_DELAY:
        yield f"Delay cannot be less than {least} (got {delay})"
    if policy.delay_function not in _DELAY_FUNCTIONS:
        functions = " ".join(quote(function) for function in DelayFunction)
        yield f"Invalid delay function {quote(policy.delay_function)}, must be one of [{functions}]"
    if policy.delay_function == DelayFunction.CONSTANT:
        return
    if policy.max_delay < MIN_RESCHEDULE_DELAY:
        yield f"Max Delay cannot be less than {least} (got {delay})"  # as in Nomad
    if policy.max_delay < policy.delay:
        yield f"Max Delay cannot be less than Delay {delay} (got {duration(policy.max_delay)})"


def _check_interval(policy: ReschedulePolicy) -> Iterator[str]:
    """Yield an error if the interval is too short for all attempts with their delays."""
    possible, needed = _viable_attempts(policy)
    if possible is None:
        return
    ceiling = ""
    joined = " and " if policy.delay_function == DelayFunction.CONSTANT else ", "
    if policy.delay_function != DelayFunction.CONSTANT:
        ceiling = f", and delay ceiling {duration(policy.max_delay)}"
    yield (
        f"Nomad can only make {possible} attempts in {duration(policy.interval)} with initial "
        f"delay {duration(policy.delay)}{joined}delay function {quote(policy.delay_function)}"
        f"{ceiling}"
    )
    rounded = (needed + SECOND // 2) // SECOND * SECOND
    yield (
        f"Set the interval to at least {duration(rounded)} to accommodate "
        f"{policy.attempts} attempts"
    )


def _viable_attempts(policy: ReschedulePolicy) -> tuple[int | None, int]:
    """Return the number of attempts that fit into the interval; None if all attempts fit.

    The second value is the interval that all attempts need, in nanoseconds.
    """
    match policy.delay_function:
        case DelayFunction.CONSTANT:
            needed = policy.attempts * policy.delay
            fits = policy.interval >= needed
            return (None if fits else max(0, policy.interval // policy.delay)), needed
        case DelayFunction.EXPONENTIAL:
            return _viable_exponential(policy)
        case _:
            return _viable_fibonacci(policy)


def _viable_exponential(policy: ReschedulePolicy) -> tuple[int | None, int]:
    """Return the result of `_viable_attempts` for delays that double up to the maximum."""
    attempt, needed, possible = 0, 0, 0
    while attempt < policy.attempts and policy.delay << attempt <= policy.max_delay:
        needed = policy.delay << attempt
        possible += needed < policy.interval
        attempt += 1
    rest = policy.attempts - attempt
    possible += max(0, min(rest, (policy.interval - needed - 1) // policy.max_delay))
    needed += rest * policy.max_delay
    return (None if possible >= policy.attempts else possible), needed


def _viable_fibonacci(policy: ReschedulePolicy) -> tuple[int | None, int]:
    """Return the result of `_viable_attempts` for Fibonacci delays up to the maximum."""
    slots, cut = [policy.delay, policy.delay], False
    while len(slots) < policy.attempts and not cut:
        cut = slots[-1] + slots[-2] > policy.max_delay
        slots.append(policy.max_delay if cut else slots[-1] + slots[-2])
    needed = slots[-1] + max(0, policy.attempts - len(slots)) * policy.max_delay
    if policy.interval >= needed:
        return None, needed
    for attempt, slot in enumerate(slots):
        if slot > policy.interval:
            return attempt, needed
    return len(slots) + (policy.interval - slots[-1]) // policy.max_delay, needed


# --- update, migrate, disconnect ---


def update(policy: Update) -> Iterator[str]:
    """Yield the errors of an update block."""
    if policy.health_check not in ("checks", "task_states", "manual"):
        yield f"Invalid health check given: {quote(policy.health_check)}"
    if policy.max_parallel < 0:
        yield f"Max parallel can not be less than zero: {policy.max_parallel} < 0"
    if policy.canary < 0:
        yield f"Canary count can not be less than zero: {policy.canary} < 0"
    if policy.canary == 0 and policy.auto_promote:
        yield "Auto Promote requires a Canary count greater than zero"
    yield from _deadlines(policy)
    if policy.stagger <= 0:
        yield f"Stagger must be greater than zero: {duration(policy.stagger)}"


def _deadlines(policy: Update) -> Iterator[str]:
    healthy, by = duration(policy.min_healthy_time), duration(policy.healthy_deadline)
    progress = duration(policy.progress_deadline)
    if policy.min_healthy_time < 0:
        yield f"Minimum healthy time may not be less than zero: {healthy}"
    if policy.healthy_deadline <= 0:
        yield f"Healthy deadline must be greater than zero: {by}"
    if policy.progress_deadline < 0:
        yield f"Progress deadline must be zero or greater: {progress}"
    if policy.min_healthy_time >= policy.healthy_deadline:
        yield f"Minimum healthy time must be less than healthy deadline: {healthy} > {by}"
    if policy.progress_deadline and policy.healthy_deadline >= policy.progress_deadline:
        yield f"Healthy deadline must be less than progress deadline: {by} > {progress}"


def migrate(policy: Migrate) -> Iterator[str]:
    """Yield the errors of a migrate block."""
    if policy.max_parallel < 0:
        yield f"MaxParallel must be >= 0 but found {policy.max_parallel}"
    if policy.health_check not in ("", "checks", "task_states"):
        yield (
            f"Invalid HealthCheck: {quote(policy.health_check)}, must be one of checks, task_states"
        )
    if not policy.health_check and policy.max_parallel > 0:
        yield "Missing HealthCheck"
    if policy.min_healthy_time < 0:
        yield f"MinHealthyTime is {duration(policy.min_healthy_time)} and must be >= 0"
    if policy.healthy_deadline < 0:
        yield f"HealthyDeadline is {duration(policy.healthy_deadline)} and must be >= 0"
    if policy.min_healthy_time > policy.healthy_deadline:
        yield "MinHealthyTime must be less than HealthyDeadline"


def disconnect(policy: Disconnect, job_type: str) -> Iterator[str]:
    """Yield the errors of a disconnect block."""
    stop, lost = policy.stop_on_client_after, policy.lost_after or 0
    if stop is not None and stop < 0:
        yield "stop_after cannot be a negative duration"
    if stop is not None and job_type not in (JobType.SERVICE, JobType.BATCH):
        yield "stop_after can only be used with service or batch job types"
    if lost < 0:
        yield "lost_after cannot be a negative duration"
    if stop is not None and lost != 0:
        yield "Disconnect cannot be configured with both lost_after and stop_after"
    if policy.reconcile not in _RECONCILE:
        options = ", ".join(sorted(filter(None, _RECONCILE)))
        yield f"reconcile option is invalid: {policy.reconcile}, must be one of {options}"
