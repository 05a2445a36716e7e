"""Parts of the store as the secrets side shows them, read without holding up the event loop.

Each function reads once and returns JSON: a long list is also encoded in the thread that read it.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import NotFound
from storage.readers import Snapshot
from storage.records.codec import encode

Look = Callable[[Snapshot], Mapping[str, object] | None]


async def keys(call: Call, look: Callable[[Snapshot], Sequence[str]]) -> Answer:
    """Return a list of names. Raises `NotFound` when it is empty."""
    return await one(call, lambda db: {"keys": names} if (names := look(db)) else None)


async def key_info(call: Call, look: Callable[[Snapshot], Mapping[str, object]]) -> Answer:
    """Return names, and a description of each. Raises `NotFound` when there are none."""

    def listed(db: Snapshot) -> dict[str, object] | None:
        found = look(db)
        return {"keys": list(found), "key_info": found} if found else None

    return await one(call, listed)


async def one(call: Call, look: Look) -> Answer:
    """Return one object. Raises `NotFound` when `look` finds none."""
    answer = await one_or_nothing(call, look)
    if answer.data is None:
        raise NotFound("")
    return answer


async def one_or_nothing(call: Call, look: Look) -> Answer:
    """Return one object, or an empty answer: a lookup that finds nothing is not an error."""

    def encoded(db: Snapshot) -> dict[str, object] | None:
        found = look(db)
        return {name: msgspec.Raw(encode(value)) for name, value in (found or {}).items()} or None

    return Answer(data=await call.parts.store.look(encoded))
