"""Lookup of the Vault API's endpoints by path.

Login methods are mounted at arbitrary paths. So the router first finds the mount with the longest
matching path, and then the endpoint for the rest of the path.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from daemon.web.request import Endpoint

SIDES = ("/v1/sys/", "/v1/auth/", "/v1/identity/")

_MOUNT = "auth/{mount}/"
_OWN = ("sys/", "identity/", "auth/token/")
_BRACES = re.compile(r"\{(\w+)\}")
_NAME = r"\w(?:[\w.-]*\w)?"
MAX_MOUNT_DEPTH = 16  # segments of the path of a mount


class EndpointMatch:
    """The result of a lookup: the mount, and the endpoint if one matches."""

    def __init__(
        self, mount: str, endpoint: Endpoint | None, parameters: Mapping[str, str]
    ) -> None:
        self.mount, self.endpoint, self.parameters = mount, endpoint, parameters


class VaultRouter:
    """All endpoints of the Vault API, grouped by mount."""

    def __init__(self, rows: Iterable[Endpoint]) -> None:
        self._groups: dict[str, list[_Pattern]] = {}
        for row in rows:
            path = row.path.removeprefix("/v1/")
            group = next(prefix for prefix in (*_OWN, _MOUNT) if path.startswith(prefix))
            self._groups.setdefault(group, []).append(_Pattern(path.removeprefix(group), row))

    def find(self, path: str, is_mount: Callable[[str], bool]) -> EndpointMatch | None:
        """Return the mount and endpoint of a path, or None if no mount matches.

        `path` does not contain the prefix `/v1/`.
        """
        for own in _OWN:
            if path.startswith(own):
                return self._within(own, own, path.removeprefix(own))
        mounted_path = path.removeprefix("auth/")
        for mount in _candidates(mounted_path):
            if is_mount(mount):
                return self._within(
                    mount, _MOUNT, f"{mounted_path}/"[len(mount) :].removesuffix("/")
                )
        return None

    def _within(self, mount: str, group: str, mounted_path: str) -> EndpointMatch:
        for pattern in self._groups.get(group, ()):
            if (parameters := pattern.match(mounted_path)) is not None:
                return EndpointMatch(mount, pattern.endpoint, parameters)
        return EndpointMatch(mount, None, {})


class _Pattern:
    """The path of an endpoint below its mount."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._pieces = _BRACES.split(path)

    def match(self, path: str) -> dict[str, str] | None:
        """Return the parameters in a path, or None if the pattern does not match the path."""
        if not path.startswith(self._pieces[0]):  # most expressions are never compiled
            return None
        match = self._regex.fullmatch(path)
        return match.groupdict() if match else None

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        pieces = self._pieces.copy()
        pieces[::2] = map(re.escape, pieces[::2])
        pieces[1::2] = [f"(?P<{name}>{_NAME if name == 'name' else '.+'})" for name in pieces[1::2]]
        end = "/?" if self.endpoint.list is not None else ""
        return re.compile("".join(pieces) + end, re.ASCII | re.DOTALL)


def _candidates(path: str) -> Iterator[str]:
    """Yield the beginnings of a path that may be the path of a mount, longest first."""
    segments = path.split("/")[:MAX_MOUNT_DEPTH]
    for count in range(len(segments), 0, -1):
        yield "/".join(segments[:count]) + "/"
