"""Search requests and responses, and the names in a job that are searched."""

from msgspec import UNSET, UnsetType

from storage.records.base import Record


class SearchRequest(Record, frozen=True, kw_only=True):
    """The request for IDs with a prefix."""

    prefix: str = ""
    context: str = ""
    namespace: str = ""


class FuzzySearchRequest(Record, frozen=True, kw_only=True):
    """The request for names that contain a string."""

    text: str = ""
    context: str = ""
    namespace: str = ""


class FuzzyMatch(Record, frozen=True, kw_only=True):
    """A matching name, and the path to the object with this name.

    The path begins with the outermost object.
    """

    id: str
    scope: list[str] | UnsetType = UNSET


class SearchResponse(Record, frozen=True, kw_only=True):
    """The matches by context, and whether a context has more matches."""

    matches: dict[str, list[str] | None] | dict[str, list[FuzzyMatch]]
    truncations: dict[str, bool]
    index: int
    known_leader: bool = True
    last_contact: int = 0
    next_token: str = ""


class ServiceName(Record, frozen=True, kw_only=True):
    """The searchable part of a service."""

    name: str | None = None


class TaskNames(Record, frozen=True, kw_only=True):
    """The searchable part of a task."""

    name: str
    driver: str | None = None
    config: dict[str, object] | None = None
    services: list[ServiceName] | None = None


class GroupNames(Record, frozen=True, kw_only=True):
    """The searchable part of a group."""

    name: str
    services: list[ServiceName] | None = None
    tasks: list[TaskNames] | None = None


class JobNames(Record, frozen=True, kw_only=True):
    """The searchable part of a job."""

    id: str
    namespace: str
    name: str
    task_groups: list[GroupNames] | None = None
