"""Lists and objects of the Vault API, read without blocking the event loop.

Each function reads once and returns JSON. The thread that reads a long list also encodes it. A list
begins after the key in `after` and has at most `limit` keys, if these are given.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

import msgspec

from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Malformed, NotFound
from storage.queries.pages import ALL, KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.numbers import parse_integer, shorten
from storage.store import Store

_LARGEST = 2**31 - 1  # keys in one response

STEP = 10_000  # names of a long list that are in memory together

LookUpKeys = Callable[[ReadSnapshot, KeyRange], Sequence[str]]
Look = Callable[[ReadSnapshot], Mapping[str, object] | None]


def span(call: RouteCall) -> KeyRange:
    """Return the range of keys that a call requests. Raises `Malformed`."""
    given = call.query.text("limit")
    if not given:
        return msgspec.structs.replace(ALL, after=call.query.text("after"))
    is_number = given.isascii() and given.isdecimal()
    if not is_number or not 0 < parse_integer(given) <= _LARGEST:
        raise Malformed(f"limit is {shorten(given)!r}: give a whole number from 1 to {_LARGEST}")
    return KeyRange(call.query.text("after"), int(given))


async def keys(call: RouteCall, look: LookUpKeys) -> VaultBody:
    """Return a list of names; a long one is sent while it is read. Raises `NotFound` if it is empty."""
    wanted, store = span(call), call.parts.store
    # A wrapped response is stored as one, and responses below sys/ have the names twice.
    is_whole = call.wrap_ttl or call.name.startswith("sys/") or 0 <= wanted.most <= STEP
    if not is_whole:
        first = await store.look(lambda db: look(db, KeyRange(wanted.after, STEP)))
        if len(first) == STEP:
            return VaultBody(keys=_pieces(store, look, first, wanted.most))
    return await one(call, lambda db: {"keys": names} if (names := look(db, wanted)) else None)


async def _pieces(
    store: Store, look: LookUpKeys, names: Sequence[str], most: int
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON list of all names; `names` are the first. Between two pieces nothing is held."""
    left, separator = most if most >= 0 else _LARGEST, b"["
    while names:
        yield separator + encode(names)[1:-1]
        left, separator = left - len(names), b","
        if len(names) < STEP or left <= 0:
            break
        names = await store.look(_after(look, names[-1], min(STEP, left)))
    yield b"]"


def _after(look: LookUpKeys, name: str, most: int) -> Callable[[ReadSnapshot], Sequence[str]]:
    return lambda db: look(db, KeyRange(name, most))


async def key_info(
    call: RouteCall, look: Callable[[ReadSnapshot, KeyRange], Mapping[str, object]]
) -> VaultBody:
    """Return names with a description of each. Raises `NotFound` if there are none."""
    wanted = span(call)

    def listed(db: ReadSnapshot) -> dict[str, object] | None:
        found = look(db, wanted)
        return {"keys": list(found), "key_info": found} if found else None

    return await one(call, listed)


async def one(call: RouteCall, look: Look) -> VaultBody:
    """Return one object. Raises `NotFound` if `look` finds none."""
    answer = await one_or_nothing(call, look)
    if answer.data is None:
        raise NotFound("")
    return answer


async def one_or_nothing(call: RouteCall, look: Look) -> VaultBody:
    """Return one object, or an empty response: a lookup without a result is not an error."""

    def encoded(db: ReadSnapshot) -> dict[str, object] | None:
        found = look(db)
        return {name: msgspec.Raw(encode(value)) for name, value in (found or {}).items()} or None

    return VaultBody(data=await call.parts.store.look(encoded))
