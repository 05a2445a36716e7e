"""Profiles whose request ends early: their thread also ends, and the next profile can begin."""

import sys

import pytest
import trio
import trio.testing

from daemon.api.cluster import profiles
from daemon.api.routes import ROUTES
from storage.errors import Malformed, TooOften
from storage.store import Store
from tests.parts.api import requests
from tests.time_limits import HAPPENS_WITHIN

(NEEDS,) = {route.needs for route in ROUTES if route.path == "/v1/agent/pprof/{profile}"}


async def make(store: Store, name: str, query: str = "") -> None:
    asked = requests.request(store, NEEDS, requests.caller(), query=query, profile=name)
    await profiles.profile(asked)


async def test_cancelled_profile_ends_its_thread_and_frees_its_resources(store: Store) -> None:
    usual, limiter = sys.getswitchinterval(), trio.to_thread.current_default_thread_limiter()
    for _ in range(3):
        with trio.fail_after(HAPPENS_WITHIN):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make, store, "profile", "seconds=300")
                while sys.getswitchinterval() == usual:  # until the profile's thread has begun
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert (limiter.borrowed_tokens, sys.getswitchinterval()) == (0, usual)
    await make(store, "goroutine")


async def test_second_profile_is_refused_while_the_first_is_running(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make, store, "profile", "seconds=300")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TooOften, match="another profile"):
            await make(store, "goroutine")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *(("profile", "seconds", item) for item in ("10000000000", "-5", "1.5", "x", "0", "301")),
        *(("heap", "gc", item) for item in ("x", "-1", "true")),
        *(("goroutine", "debug", item) for item in ("x", "1.5", "9" * 5000)),
    ],
)
async def test_invalid_number_is_refused_with_its_name(
    store: Store, name: str, field: str, value: str
) -> None:
    told = rf'{field} = "{value}" is not a whole number from {field == "seconds":d} to '
    with pytest.raises(Malformed, match=told):
        await make(store, name, f"{field}={value}")
