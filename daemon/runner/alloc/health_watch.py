"""Watch the health of one allocation until it is decided, or until the deadline."""

from collections.abc import Callable

import trio

from daemon.clock import Clock
from daemon.runner.alloc import alloc_health as health
from daemon.runner.alloc.alloc_health import HealthCriteria
from daemon.runner.core import task_events
from daemon.runner.core.background import start_detached
from daemon.runner.core.lifecycle import first_start_time
from daemon.runner.core.notifier import Notifier
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_instance import TaskInstance
from storage import request_context
from storage.records.base import SECOND
from storage.records.service import CheckResult


class HealthWatch:
    """The health watch of one allocation. A new deployment begins the watch again.

    `instance` returns the current allocation. `checks_pass_since` returns the time, in nanoseconds,
    since which all service checks have passed; None if a check has not passed. `failing_checks`
    returns the results of the checks that have not passed.
    """

    def __init__(
        self,
        clock: Clock,
        instance: Callable[[], TaskInstance],
        report: AllocReport,
        changes: Notifier,
        is_ending: Callable[[], bool],
        checks_pass_since: Callable[[], int | None],
        failing_checks: Callable[[], list[CheckResult]],
    ) -> None:
        self._now = clock.now
        self._instance, self._report, self._changes = instance, report, changes
        self._is_ending, self._checks_pass_since = is_ending, checks_pass_since
        self._failing_checks = failing_checks
        self._scope = trio.CancelScope()

    def start(self, nursery: trio.Nursery | None) -> None:
        """Watch the health for the current deployment and cancel the previous watch."""
        self._scope.cancel()
        rule = self._rule()
        if rule is not None and self._report.healthy is None and nursery is not None:
            self._scope = trio.CancelScope()
            start_detached(nursery, self._decide, rule, self._scope)

    def close(self) -> None:
        """Report the allocation as unhealthy if health is tracked, because all its tasks ended."""
        failed = health.has_failed(self._instance().allocation, self._report.states)
        if failed or self._rule() is not None:
            self._report_unhealthy()

    def _rule(self) -> HealthCriteria | None:
        instance = self._instance()
        return health.health_criteria(instance.job.type, instance.group, instance.allocation)

    async def _decide(self, rule: HealthCriteria, scope: trio.CancelScope) -> None:
        with scope:
            with trio.move_on_after(rule.deadline / SECOND):
                await self._become_healthy(rule)
            if self._report_unhealthy():
                self._complain(rule)
                self._report.publish()

    def _report_unhealthy(self) -> bool:
        """Report the allocation as unhealthy, unless it is stopping or its health is known.

        Return whether the health was reported.
        """
        unknown = self._report.healthy is None and not self._is_ending()
        if unknown:
            self._report.health(self._now(), healthy=False)
        return unknown

    async def _become_healthy(self, rule: HealthCriteria) -> None:
        """Report the allocation as healthy when all tasks have run for `min_healthy_time`.

        Return without a report when the allocation can no longer become healthy.
        """
        tasks, states = self._instance().tasks, self._report.states
        while not health.can_no_longer_succeed(tasks, states):
            since = self._healthy_since(rule)
            if since is None:
                await self._changes.wait()
                continue
            with trio.move_on_after(rule.min_healthy_time / SECOND) as calm:
                while self._healthy_since(rule) == since:
                    await self._changes.wait()
            if calm.cancelled_caught:
                self._report.health(self._now(), healthy=True)
                if (recorder := request_context.TRACING.recorder) is not None:
                    up = first_start_time(self._report.states.values())
                    recorder.follow("first health", up or self._now())
                return

    def _healthy_since(self, rule: HealthCriteria) -> tuple[str, int] | None:
        """Return the start time of the last task, and the time since which all checks have passed.

        The first time is a timestamp. The second is in nanoseconds, and 0 if checks do not count.
        Return None if a task is not running or a check has not passed.
        """
        up = health.up_since(self._instance().tasks, self._report.states)
        checked = self._checks_pass_since() if rule.by_checks else 0
        return None if up is None or checked is None else (up, checked)

    def _complain(self, rule: HealthCriteria) -> None:
        tasks, states = self._instance().tasks, self._report.states
        if not rule.for_deployment or health.can_no_longer_succeed(tasks, states):
            return
        now = self._now()
        for name, text in health.unhealthy_reasons(tasks, states, rule, now).items():
            checks = ""
            if text == health.UNHEALTHY_SERVICES:
                checks = health.failing_checks(name, self._failing_checks())
            self._report.event(name, task_events.unhealthy(now, text, checks))
