"""Searches: what is asked, what is found, and the names inside a job by which it is found."""

from msgspec import UNSET, UnsetType

from storage.records.base import Record


class SearchRequest(Record, frozen=True, kw_only=True):
    """The body that asks for identifiers that begin like this."""

    prefix: str = ""
    context: str = ""
    namespace: str = ""


class FuzzySearchRequest(Record, frozen=True, kw_only=True):
    """The body that asks for names that hold this text."""

    text: str = ""
    context: str = ""
    namespace: str = ""


class FuzzyMatch(Record, frozen=True, kw_only=True):
    """A name that was found, and where the thing is that has it: from the outside to the inside."""

    id: str
    scope: list[str] | UnsetType = UNSET


class SearchResponse(Record, frozen=True, kw_only=True):
    """What was found in each context, and whether there is more of it."""

    matches: dict[str, list[str] | None] | dict[str, list[FuzzyMatch]]
    truncations: dict[str, bool]
    index: int
    known_leader: bool = True
    last_contact: int = 0
    next_token: str = ""


class ServiceName(Record, frozen=True, kw_only=True):
    """The part of a service by which it is found."""

    name: str | None = None


class TaskNames(Record, frozen=True, kw_only=True):
    """The part of a task by which it is found."""

    name: str
    driver: str | None = None
    config: dict[str, object] | None = None
    services: list[ServiceName] | None = None


class GroupNames(Record, frozen=True, kw_only=True):
    """The part of a group by which it is found."""

    name: str
    services: list[ServiceName] | None = None
    tasks: list[TaskNames] | None = None


class JobNames(Record, frozen=True, kw_only=True):
    """The part of a job by which it is found."""

    id: str
    namespace: str
    name: str
    task_groups: list[GroupNames] | None = None
