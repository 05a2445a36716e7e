"""Work that outlives a request does not inherit its context."""

import re
from contextvars import ContextVar
from pathlib import Path

import trio

import daemon
from daemon.runner.core.background import start_detached

WHOSE: ContextVar[str] = ContextVar("whose", default="nobody")
KEPT = re.compile(r"self\.\w*nursery\.start_soon\(")


async def test_background_task_has_the_context_variables_of_its_nursery() -> None:
    found: list[tuple[str, int]] = []

    async def note(number: int) -> None:
        found.append((WHOSE.get(), number))

    async def ask(nursery: trio.Nursery) -> None:
        WHOSE.set("request")
        start_detached(nursery, note, 1)

    WHOSE.set("owner")
    async with trio.open_nursery() as kept, trio.open_nursery() as requests:
        requests.start_soon(ask, kept)
        start_detached(kept, note, 2)
    assert sorted(found, key=lambda pair: pair[1]) == [("owner", 1), ("owner", 2)]


def test_stored_nursery_is_used_only_through_the_helper() -> None:
    sources = Path(daemon.__file__).parent.rglob("*.py")
    assert [str(path) for path in sources if KEPT.search(path.read_text())] == []
