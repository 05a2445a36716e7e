"""Size limits for submitted jobs, checked before any expensive step.

Each limit is a setting, and its default exceeds every practical need. Together the limits bound the
cost of one scheduling decision. They apply to submissions only. If a limit is lowered, stored jobs
above the limit keep running.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from daemon.text.go_format import multi_error
from storage.errors import Invalid
from storage.records.codec import Document, encode
from storage.records.job import Job

_MEGABYTE = 1024 * 1024
_HEAD = 512  # bytes per stored job: indexes, status and submission time
_FIX = "raise {} in the daemon's configuration"


class OverBudget(Invalid):
    """The job exceeds a limit of the settings. `problems` has one text per exceeded limit."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(multi_error(problems))
        self.problems = tuple(problems)


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum of each quantity per job; 0 means no limit. The fields are named after their settings."""

    job_max_count: int = 50_000
    job_max_groups: int = 2_000
    job_max_tasks: int = 5_000
    job_max_specs: int = 100
    job_max_constraints: int = 20_000
    job_max_services: int = 5_000
    job_max_checks: int = 5_000
    job_max_ports: int = 5_000
    job_max_templates: int = 5_000
    job_max_kb: int = 4_096
    job_max_versions: int = 1_000_000
    job_max_versions_mb: int = 4_096

    @classmethod
    def of(cls, settings: object) -> "Budgets":
        """Return the limits from the settings."""
        return msgspec.convert(settings, cls, from_attributes=True)

    def check(self, document: Document) -> None:
        """Raise `OverBudget` if a job document exceeds a limit.

        `job_max_count` and the limits on versions are checked elsewhere. The document uses the
        field names that `wire_name` returns.
        """
        if problems := list(self._exceeded(document)):
            raise OverBudget(problems)

    def check_versions(self, number: int, size: int) -> None:
        """Raise `OverBudget` if a further version of a job cannot be stored.

        The arguments are the number of stored versions and their total size in bytes.
        """
        most = self.job_max_versions_mb * _MEGABYTE
        counted = (
            (
                number >= self.job_max_versions,
                number,
                "",
                self.job_max_versions,
                "job_max_versions",
            ),
            (
                size >= most,
                size // _MEGABYTE,
                " MB",
                self.job_max_versions_mb,
                "job_max_versions_mb",
            ),
        )
        if problems := [
            f"Versions: the job has {amount}{unit}, but the limit is {limit}{unit}: "
            f"purge the job, register it under another ID, or {_FIX.format(setting)}"
            for is_full, amount, unit, limit, setting in counted
            if limit and is_full
        ]:
            raise OverBudget(problems)

    def check_stored(self, job: Job) -> None:
        """Raise `OverBudget` if a stored job cannot be registered again.

        The size of the job is measured without defaults, which users did not write.
        """
        problems = [*self._too_many_in(complete := msgspec.to_builtins(job))]
        if self.job_max_kb and len(encode(complete)) > self.job_max_kb * 1024:
            problems += self._too_large(_without_defaults(complete), _HEAD)
        if problems:
            raise OverBudget(problems)

    def _exceeded(self, document: Document) -> Iterator[str]:
        yield from self._too_many_in(document)
        yield from self._too_large(document)

    def _too_large(self, document: Document, spared: int = 0) -> Iterator[str]:
        size = len(encode(document)) - spared
        if self.job_max_kb and size > self.job_max_kb * 1024:
            yield (
                f"Job: its definition takes {-(-size // 1024)} KB, but the limit is {self.job_max_kb} KB: "
                f"make it smaller, or {_FIX.format('job_max_kb')}"
            )

    def _too_many_in(self, document: Document) -> Iterator[str]:
        groups = _documents(document, "TaskGroups")
        tasks = [task for group in groups for task in _documents(group, "Tasks")]
        services = [
            service for owner in (*groups, *tasks) for service in _documents(owner, "Services")
        ]
        networks = [
            network
            for owner in (*groups, *(task.get("Resources") or {} for task in tasks))
            for network in _documents(owner, "Networks")
        ]
        ports = sum(
            _number(network, "ReservedPorts") + _number(network, "DynamicPorts")
            for network in networks
        )
        yield from _too_many(
            (len(groups), "TaskGroups", "groups", self.job_max_groups, "job_max_groups"),
            (len(tasks), "Tasks of all groups", "tasks", self.job_max_tasks, "job_max_tasks"),
            (
                _number(document.get("Periodic") or {}, "Specs"),
                *("Periodic.Specs", "expressions", self.job_max_specs, "job_max_specs"),
            ),
            (
                _conditions(document, groups, tasks),
                "Constraints, Affinities, Spreads and Datacenters (those of the job once per group)",
                *("conditions", self.job_max_constraints, "job_max_constraints"),
            ),
            (len(services), "Services", "services", self.job_max_services, "job_max_services"),
            (
                sum(_number(service, "Checks") for service in services),
                *("Checks of all services", "checks", self.job_max_checks, "job_max_checks"),
            ),
            (ports, "Ports of all networks", "ports", self.job_max_ports, "job_max_ports"),
            (
                sum(_number(task, "Templates") for task in tasks),
                *("Templates of all tasks", "templates"),
                *(self.job_max_templates, "job_max_templates"),
            ),
        )


DEFAULTS = Budgets()


@lru_cache(maxsize=8)
def _smallest(kind: str) -> Document:
    """Return the smallest complete job of a type, with required fields only."""
    from daemon.jobspec.canonicalize import canonicalize  # only the largest jobs need this

    group = {"Name": "", "Tasks": [{"Name": ""}]}
    job = canonicalize({"ID": "", "Type": kind, "TaskGroups": [group]}, region="global")
    document: Document = msgspec.to_builtins(job)
    return document


def _without_defaults(document: Document) -> Document:
    """Return a complete job without the defaults that completion added."""
    defaults = _smallest(document["Type"])
    (known_group,) = defaults["TaskGroups"]
    (known_task,) = known_group["Tasks"]
    groups = [
        {
            **_beside(group, known_group),
            "Tasks": [_beside(task, known_task) for task in _documents(group, "Tasks")],
        }
        for group in _documents(document, "TaskGroups")
    ]
    return {**_beside(document, defaults), "TaskGroups": groups}


def _beside(document: Document, defaults: Document) -> Document:
    return {
        name: _without_empty_parts(value)
        for name, value in document.items()
        if value and value != defaults.get(name)
    }


def _without_empty_parts(value: object) -> object:
    """Return a value without the empty values in its maps."""
    if isinstance(value, dict):
        return {name: _without_empty_parts(part) for name, part in value.items() if part}
    if isinstance(value, list):
        return [_without_empty_parts(element) for element in value]
    return value


def _too_many(*counted: tuple[int, str, str, int, str]) -> Iterator[str]:
    for number, field, noun, most, setting in counted:
        if most and number > most:
            yield (
                f"{field}: {number} {noun}, but the limit is {most}: split the job, or {_FIX.format(setting)}"
            )


def _conditions(document: Document, groups: Sequence[Document], tasks: Sequence[Document]) -> int:
    """Return the number of conditions that the scheduler evaluates per node for all groups."""
    devices = [
        device for task in tasks for device in _documents(task.get("Resources") or {}, "Devices")
    ]
    own = sum(_scoped(group) for group in (*groups, *tasks, *devices))
    of_job = _scoped(document) + _number(document, "Datacenters")
    return own + of_job * max(len(groups), 1)


def _scoped(document: Document) -> int:
    spreads = _documents(document, "Spreads")
    targets = sum(_number(spread, "SpreadTarget") for spread in spreads)
    blocks = sum(_number(document, name) for name in ("Constraints", "Affinities"))
    return blocks + len(spreads) + targets


def _documents(document: Document, name: str) -> Sequence[Document]:
    documents: Sequence[Document] | None = document.get(name)
    return documents or ()


def _number(document: Document, name: str) -> int:
    return len(document.get(name) or ())
