"""The router, which finds the rows of a route table that match a path.

Job IDs may contain slashes. So the router matches the literal end of a path first, and a parameter
before it takes everything that is left: `/v1/job/a/b/plan` is the plan of `a/b`. A job whose ID
ends like an endpoint of Nomad cannot be addressed, as in Nomad. `is_own` identifies Steward's own
endpoints. A request to such an endpoint can fall back to a job whose ID ends like the endpoint.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Generic, Protocol, TypeVar


class RouteEntry(Protocol):
    """A row of a table of routes."""

    @property
    def path(self) -> str:
        """Return the path of the row, with placeholders in braces."""
        ...


R = TypeVar("R", bound=RouteEntry)

_BRACES = re.compile(r"\{(\w+)\}")


class _Pattern(Generic[R]):
    """The routes of one path, with its literal parts and parameters."""

    def __init__(self, path: str) -> None:
        pieces = _BRACES.split(path)
        self.routes: list[R] = []
        self.names = pieces[1::2]
        self._literals = pieces[::2]
        self.head = self._literals[0]

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        """Return the regular expression for the whole path.

        It is compiled for the first path that it may match. Compiling all expressions would take
        half of the daemon's start time.
        """
        # A parameter matches slashes only if a literal end is all that can follow.
        inner = "".join(
            f"(?P<{name}>.*){re.escape(literal)}"
            for name, literal in zip(self.names, self._literals[1:], strict=True)
        )
        return re.compile(re.escape(self.head) + inner, re.DOTALL)

    @property
    def place(self) -> tuple[str, str]:
        """Return the key by which the router finds this pattern.

        The key has the first two segments and the last segment of the matching paths.
        """
        return _folder(self.head), _ending(self._literals[-1])

    @property
    def rank(self) -> tuple[int, int]:
        """Return a sort key: the more specific pattern first."""
        return -len(self._literals[-1]), -len("".join(self._literals))

    def match(self, path: str) -> dict[str, str] | None:
        """Return the parameters of a path that this pattern matches."""
        match = self._regex.fullmatch(path)
        return match.groupdict() if match else None


class Router(Generic[R]):
    """All routes by path."""

    def __init__(self, routes: Iterable[R]) -> None:
        self._exact: dict[str, list[R]] = {}
        patterns: dict[str, _Pattern[R]] = {}
        for route in routes:
            if "{" in route.path:
                patterns.setdefault(route.path, _Pattern(route.path)).routes.append(route)
            else:
                self._exact.setdefault(route.path, []).append(route)
        self._places: dict[tuple[str, str], list[_Pattern[R]]] = {}
        for pattern in sorted(patterns.values(), key=lambda pattern: pattern.rank):
            self._places.setdefault(pattern.place, []).append(pattern)
        self._heads = {pattern.head for pattern in patterns.values()}

    def find(self, path: str) -> tuple[list[R], Mapping[str, str]]:
        """Return the routes of a path, and the values of its placeholders."""
        if routes := self._exact.get(path):
            return routes, {}
        folder = _folder(path)
        for ending in (_ending(path), ""):  # more specific ones first
            for pattern in self._places.get((folder, ending), ()):
                if (parameters := pattern.match(path)) is not None:
                    return pattern.routes, parameters
        return [], {}

    def is_folder(self, path: str) -> bool:
        """Return whether only paths below this one are served."""
        below = f"{path}/"
        return path not in self._exact and (below in self._heads or below in self._exact)


def _folder(path: str) -> str:
    """Return the first two segments of a path: `/v1/job` of `/v1/job/a/plan`."""
    return "/".join(path.split("/", 3)[:3])


def _ending(path: str) -> str:
    """Return the last segment of a path; empty if the last segment is a parameter."""
    return path.rpartition("/")[2]


# --- jobs whose IDs end like an endpoint ---

BEFORE_JOB = "/v1/job/"
JOB = "/v1/job/{job_id}"
_OF_NOMAD = frozenset(
    f"{JOB}/{end}"
    for end in (
        *("action", "actions", "allocations", "deployment", "deployments", "dispatch"),
        *("evaluate", "evaluations", "periodic/force", "plan", "revert", "scale", "services"),
        *("stable", "submission", "summary", "tag", "versions", "versions/{name}/tag"),
    )
)


def is_own(route: str) -> bool:
    """Return whether the path of a route is an endpoint of a job that Nomad does not have.

    Nomad accepts a job whose ID ends like such an endpoint. So a request falls back to the job with
    the whole ID: if the endpoint has no such method, or if a read finds no job with the shorter ID.

    >>> is_own("/v1/job/{job_id}/run"), is_own("/v1/job/{job_id}/plan"), is_own("/v1/job/{job_id}")
    (True, False, False)
    """
    return route.startswith(f"{JOB}/") and route not in _OF_NOMAD
