"""Register the services of a running allocation and run their checks."""

from collections.abc import Callable, Iterator

import trio

from daemon.net.port_listeners import describe_conflicts
from daemon.runner.core.notifier import Notifier
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_env import resolve, task_environment
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.services.checks import CheckRunner, Restart, Run
from daemon.runner.services.registrations import (
    ActiveService,
    ServiceContext,
    active,
    faults,
    probes,
)
from daemon.runner.setup.runtime import RuntimeContext
from storage.records.service import CheckResult, ServiceAddress
from storage.records.task import Task


class ServiceRegistrar:
    """The services of one allocation. While `is_ending` returns true, no service is registered."""

    def __init__(
        self,
        host: RuntimeContext,
        instance: Callable[[], TaskInstance],
        report: AllocReport,
        is_ending: Callable[[], bool],
        changes: Notifier,
        restart: Restart,
        run: Run,
    ) -> None:
        self._host, self._instance, self._report = host, instance, report
        self._is_ending, self._changes = is_ending, changes
        allocation = instance().allocation
        self._checks = CheckRunner(
            allocation.name,
            host.clock.now,
            self._changed,
            restart,
            run,
            host.permit,
            host.fences,
        )

    @property
    def results(self) -> list[CheckResult]:
        """Return the latest results of the service checks."""
        return self._checks.results

    def healthy_since(self) -> int | None:
        """Return the time since which all checks have passed, as `CheckRunner` returns it."""
        return self._checks.healthy_since(probes(self._service_context(), self._active()))

    def failing_checks(self) -> list[CheckResult]:
        """Return the results of the failing checks that make the allocation unhealthy."""
        return self._checks.failing(probes(self._service_context(), self._active()))

    def offers(self) -> list[ServiceAddress]:
        """Return the current registrations with their readiness."""
        context = self._service_context()
        return [
            ServiceAddress(service.registration, self._checks.ready(probes(context, [service])))
            for service in self._active()
        ]

    def _changed(self) -> None:
        self._changes.announce()
        self._report.publish_services()

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the tasks whose services cannot be registered, with the reason."""
        return faults(self._service_context())

    def port_conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield a task and a sentence for each static port of the task that is already in use.

        Call this before any task runs.
        """
        ports = self._instance().allocation.placement.resources.static_ports
        listening = self._host.listeners({number for _, number in ports})
        for text in describe_conflicts(ports, listening):
            yield from ((task.name, text) for task in self._instance().tasks)

    @property
    def exists(self) -> bool:
        """Return whether the allocation has any service."""
        instance = self._instance()
        return bool(instance.group.services) or any(task.services for task in instance.tasks)

    def _active(self) -> Iterator[ActiveService]:
        if not self.exists or self._is_ending() or not self._report.states:
            return iter(())
        return active(self._service_context(), self._report.states)

    def _service_context(self) -> ServiceContext:
        instance, values = self._instance(), self._host.values
        return ServiceContext(
            allocation=instance.allocation,
            group=instance.group,
            datacenter=values.get("node.datacenter", ""),
            address=values.get("attr.unique.network.ip-address", ""),
            inside=self._report.network.address if self._report.network else "",
            resolve=self._resolve,
        )

    def _resolve(self, task: str, text: str) -> str:
        if "${" not in text:
            return text
        instance, host = self._instance(), self._host
        env = task_environment(
            {},
            instance.allocation,
            instance.job,
            instance.group.task(task) or Task(name=task),
            directories(host.directory(instance.allocation.id), task),
            host.values,
        )
        return resolve(text, env, host.values)

    async def run(self) -> None:
        """Run the checks of the registered services until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._checks.follow(probes(self._service_context(), self._active()), nursery)
                await self._changes.wait()
