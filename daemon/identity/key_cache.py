"""The cache of the keys that auth methods have fetched.

The daemon imports this module at each start, so it imports few modules itself.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from daemon.identity.single_flight import SingleFlight
from storage.records.identity import DirectoryKey

T = TypeVar("T")

MOST_METHODS = 200  # methods whose keys are cached

CacheKey = tuple[str, int]  # name and modify index of a method


class FetchedKeys(msgspec.Struct, frozen=True):
    """The keys of a method, and the time when they were fetched.

    `in_vain_at` is the time of the last fetch that did not return the requested key. Times are in
    nanoseconds.
    """

    keys: Sequence[DirectoryKey]
    fetched_at: int
    in_vain_at: int = 0  # time of the last fetch without the requested key


class KeyCache:
    """The fetched keys, the last errors with their times, and the running fetches."""

    def __init__(self) -> None:
        self.fetched: dict[CacheKey, FetchedKeys] = {}
        self.failures: dict[CacheKey, tuple[int, str]] = {}
        self.flights: SingleFlight[Sequence[DirectoryKey]] = SingleFlight()


def put_last(cache: dict[CacheKey, T], key: CacheKey, value: T) -> None:
    """Store a value as the newest value; drop the oldest values beyond the limit."""
    cache.pop(key, None)
    cache[key] = value
    while len(cache) > MOST_METHODS:
        del cache[next(iter(cache))]
