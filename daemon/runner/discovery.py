"""What an allocation offers to others while it runs: its services, registered and checked."""

from collections.abc import Callable, Iterator

import trio

from daemon.listening import sentences
from daemon.runner.changes import Changes
from daemon.runner.checks import Checks, Restart, Run
from daemon.runner.env import resolve, task_environment
from daemon.runner.host import Host
from daemon.runner.instance import Instance
from daemon.runner.report import Report
from daemon.runner.services import Active, Place, active, faults, probes
from daemon.runner.taskdir import directories
from storage.records.service import CheckResult, Offer
from storage.records.task import Task


class Discovery:
    """The services of one allocation. `is_ending` tells that others should stop to come."""

    def __init__(
        self,
        host: Host,
        instance: Callable[[], Instance],
        report: Report,
        is_ending: Callable[[], bool],
        changes: Changes,
        restart: Restart,
        run: Run,
    ) -> None:
        self._host, self._instance, self._report = host, instance, report
        self._is_ending, self._changes = is_ending, changes
        allocation = instance().allocation
        self._checks = Checks(
            allocation.name, host.clock.now, self._changed, restart, run, host.fetcher.permit
        )

    @property
    def results(self) -> list[CheckResult]:
        """Return what the checks found last."""
        return self._checks.results

    def healthy_since(self) -> int | None:
        """Return since when all checks that count pass; None while one does not."""
        return self._checks.healthy_since(probes(self._place(), self._active()))

    def offers(self) -> list[Offer]:
        """Return what is registered at the moment, and what of that is ready."""
        place = self._place()
        return [
            Offer(one.registration, self._checks.ready(probes(place, [one])))
            for one in self._active()
        ]

    def _changed(self) -> None:
        self._changes.announce()
        self._report.publish_services()

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the tasks whose services cannot be registered, and why."""
        return faults(self._place())

    def strangers(self) -> Iterator[tuple[str, str]]:
        """Yield each task, and who has a static port of the allocation before any of them runs."""
        ports = self._instance().allocation.placement.resources.static_ports
        found = self._host.listeners({number for _, number in ports})
        for text in sentences(ports, found):
            yield from ((task.name, text) for task in self._instance().tasks)

    @property
    def exists(self) -> bool:
        """Tell whether there is any service."""
        instance = self._instance()
        return bool(instance.group.services) or any(task.services for task in instance.tasks)

    def _active(self) -> Iterator[Active]:
        if not self.exists or self._is_ending() or not self._report.states:
            return iter(())
        return active(self._place(), self._report.states)

    def _place(self) -> Place:
        instance, values = self._instance(), self._host.values
        return Place(
            allocation=instance.allocation,
            group=instance.group,
            datacenter=values.get("node.datacenter", ""),
            address=values.get("attr.unique.network.ip-address", ""),
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
        """Make the checks of what is registered, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._checks.follow(probes(self._place(), self._active()), nursery)
                await self._changes.wait()
