"""How large a submitted job may be: it is counted before anything costly is done with it.

Each limit is a setting. All of them are above what anybody has a use for; together they bound what a
decision about one job can cost. They refuse what comes in and take nothing away: what the store holds
already goes on, also beyond a limit that was lowered since.
"""

from collections.abc import Iterator, Sequence

import msgspec

from daemon.jobspec.gotext import multi_error
from storage.errors import Invalid
from storage.records.codec import Document, encode
from storage.records.job import Job

_FIX = "raise {} in the daemon's configuration"


class OverBudget(Invalid):
    """A job is larger than a setting allows; `problems` has a text for each limit."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(multi_error(problems))
        self.problems = tuple(problems)


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a job may have of each; 0 is no limit. The settings have these names."""

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

    @classmethod
    def of(cls, settings: object) -> "Budgets":
        """Return the limits that settings name."""
        return msgspec.convert(settings, cls, from_attributes=True)

    def check(self, document: Document) -> None:
        """Raise `OverBudget` unless a document of a job is within all limits but that of its counts.

        Names in it are spelled as `wire_name` spells them.
        """
        if problems := list(self._beyond(document)):
            raise OverBudget(problems)

    def check_stored(self, job: Job) -> None:
        """Raise `OverBudget` unless a job from the store may come in anew."""
        self.check(msgspec.to_builtins(job))

    def _beyond(self, document: Document) -> Iterator[str]:
        groups = _all(document, "TaskGroups")
        tasks = [task for group in groups for task in _all(group, "Tasks")]
        services = [one for owner in (*groups, *tasks) for one in _all(owner, "Services")]
        networks = [
            one
            for owner in (*groups, *(task.get("Resources") or {} for task in tasks))
            for one in _all(owner, "Networks")
        ]
        ports = sum(
            _number(one, "ReservedPorts") + _number(one, "DynamicPorts") for one in networks
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
                "Constraints, Affinities, Spreads and Datacenters, those of the job for each group",
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
        if self.job_max_kb and (size := len(encode(document))) > self.job_max_kb * 1024:
            yield (
                f"Job: its definition has {-(-size // 1024)} KB, at most {self.job_max_kb} KB: "
                f"make it smaller, or {_FIX.format('job_max_kb')}"
            )


DEFAULTS = Budgets()


def _too_many(*counted: tuple[int, str, str, int, str]) -> Iterator[str]:
    for number, field, noun, most, setting in counted:
        if most and number > most:
            yield (
                f"{field}: {number} {noun}, at most {most}: split the job, or {_FIX.format(setting)}"
            )


def _conditions(document: Document, groups: Sequence[Document], tasks: Sequence[Document]) -> int:
    """Return how many conditions a placement of all groups looks at on one node."""
    devices = [one for task in tasks for one in _all(task.get("Resources") or {}, "Devices")]
    own = sum(_scoped(one) for one in (*groups, *tasks, *devices))
    of_job = _scoped(document) + _number(document, "Datacenters")
    return own + of_job * max(len(groups), 1)


def _scoped(document: Document) -> int:
    spreads = _all(document, "Spreads")
    targets = sum(_number(spread, "SpreadTarget") for spread in spreads)
    blocks = sum(_number(document, name) for name in ("Constraints", "Affinities"))
    return blocks + len(spreads) + targets


def _all(document: Document, name: str) -> Sequence[Document]:
    found: Sequence[Document] | None = document.get(name)
    return found or ()


def _number(document: Document, name: str) -> int:
    return len(document.get(name) or ())
