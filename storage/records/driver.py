"""The names of the drivers. A driver can have several names (aliases)."""

from collections.abc import Iterable

SPELLINGS: tuple[tuple[str, ...], ...] = (("podman", "docker"),)  # the canonical name comes first

_SPELLINGS_OF = {name: names for names in SPELLINGS for name in names}


def spellings(name: str) -> tuple[str, ...]:
    """Return all names of a driver.

    >>> spellings("docker"), spellings("exec")
    (('podman', 'docker'), ('exec',))
    """
    return _SPELLINGS_OF.get(name, (name,))


def canonical(name: str) -> str:
    """Return the canonical name of a driver."""
    return spellings(name)[0]


def is_listed(name: str, names: Iterable[str]) -> bool:
    """Return whether a list contains a driver under any of its names."""
    return canonical(name) in map(canonical, names)
