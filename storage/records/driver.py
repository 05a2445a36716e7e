"""Driver names: the one table of the names that mean the same driver."""

from collections.abc import Iterable

SPELLINGS: tuple[tuple[str, ...], ...] = (("podman", "docker"),)  # the driver's own name is first

_SPELLINGS_OF = {name: names for names in SPELLINGS for name in names}


def spellings(name: str) -> tuple[str, ...]:
    """Return all names of a driver.

    >>> spellings("docker"), spellings("exec")
    (('podman', 'docker'), ('exec',))
    """
    return _SPELLINGS_OF.get(name, (name,))


def canonical(name: str) -> str:
    """Return a driver's own name."""
    return spellings(name)[0]


def is_listed(name: str, names: Iterable[str]) -> bool:
    """Return whether a list names a driver, by whichever of its names."""
    return canonical(name) in map(canonical, names)
