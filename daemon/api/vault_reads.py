"""Lists and objects of the Vault API, read without blocking the event loop.

The functions return JSON. The thread that reads a long list also encodes it. A list begins after
the key in `after` and has at most `limit` keys, if these parameters are set. A long list is read in
steps, and sent while it is read.
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
INFO_STEP = 1000  # names with a description

LookUpKeys = Callable[[ReadSnapshot, KeyRange], Sequence[str]]
LookUpInfo = Callable[[ReadSnapshot, KeyRange], Mapping[str, object]]
Look = Callable[[ReadSnapshot], Mapping[str, object] | None]


class _Part(msgspec.Struct, frozen=True):
    """Some keys of a list, and their descriptions, as JSON without the enclosing brackets."""

    keys: bytes
    info: bytes
    last: str
    number: int


class _List(msgspec.Struct, frozen=True):
    """A list: the query, the number of keys per step, and the names of its fields."""

    look: Callable[[ReadSnapshot, KeyRange], Sequence[str] | Mapping[str, object]]
    step: int
    names: tuple[str, ...] = ("keys",)  # fields with the keys
    info: str = ""  # field with the descriptions

    async def part(self, store: Store, key_range: KeyRange) -> _Part:
        """Return the first keys of a range, at most `step` keys."""
        most = self.step if key_range.most < 0 else min(self.step, key_range.most)

        def look(db: ReadSnapshot) -> _Part:
            values = self.look(db, KeyRange(key_range.after, most))
            keys = list(values)
            info = encode(values)[1:-1] if self.info else b""
            return _Part(encode(keys)[1:-1], info, keys[-1] if keys else "", len(keys))

        return await store.read_any(look)


def span(call: RouteCall) -> KeyRange:
    """Return the range of keys that a call requests. Raises `Malformed`."""
    limit = call.query.text("limit")
    if not limit:
        return msgspec.structs.replace(ALL, after=call.query.text("after"))
    is_number = limit.isascii() and limit.isdecimal()
    if not is_number or not 0 < parse_integer(limit) <= _LARGEST:
        raise Malformed(f"limit is {shorten(limit)!r}: give a whole number from 1 to {_LARGEST}")
    return KeyRange(call.query.text("after"), int(limit))


async def keys(
    call: RouteCall,
    lookup: LookUpKeys,
    *,
    names: tuple[str, ...] = ("keys",),
    lists_all: bool = False,
) -> VaultBody:
    """Return a list of keys in each of the fields `names`. Raises `NotFound` if it is empty.

    With `lists_all`, the list ignores `after` and `limit`.
    """
    return await _listed(call, _List(lookup, STEP, names), ALL if lists_all else span(call))


async def key_info(call: RouteCall, lookup: LookUpInfo) -> VaultBody:
    """Return keys with a description of each. Raises `NotFound` if there are no keys."""
    return await _listed(call, _List(lookup, INFO_STEP, info="key_info"), span(call))


async def _listed(call: RouteCall, listing: _List, key_range: KeyRange) -> VaultBody:
    first = await listing.part(call.parts.store, key_range)
    if not first.number:
        raise NotFound("")
    members = _members(call.parts.store, listing, first, key_range.most)
    if first.number == listing.step != key_range.most:
        return VaultBody(members=members)
    document = b"{%b}" % b"".join([chunk async for chunk in members])
    return VaultBody(data=msgspec.json.decode(document, type=dict[str, msgspec.Raw]))


async def _members(
    store: Store, listing: _List, part: _Part, most: int
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON members of a list's data; `part` is the first part.

    The list has at most `most` keys; a negative number means no limit. No read snapshot stays open
    between two parts. Keys stay in memory only if the response repeats them in another field.
    """
    streamed = listing.info or listing.names[0]
    opening, closing = (b"{", b"}") if listing.info else (b"[", b"]")
    again = listing.names if listing.info else listing.names[1:]
    read: list[bytes] = []
    left, separator = most if most >= 0 else _LARGEST, b'"%b":%b' % (streamed.encode(), opening)
    while part.number:
        yield separator + (part.info if listing.info else part.keys)
        if again:
            read.append(part.keys)
        left, separator = left - part.number, b","
        if part.number < listing.step or left <= 0:
            break
        part = await listing.part(store, KeyRange(part.last, left))
    yield closing
    for name in again:
        separator = b',"%b":[' % name.encode()
        for chunk in read:
            yield separator + chunk
            separator = b","
        yield b"]"


async def read_one(call: RouteCall, lookup: Look) -> VaultBody:
    """Return one object. Raises `NotFound` if `lookup` finds none."""
    answer = await read_optional(call, lookup)
    if answer.data is None:
        raise NotFound("")
    return answer


async def read_optional(call: RouteCall, lookup: Look) -> VaultBody:
    """Return one object, or an empty response if `lookup` finds none."""

    def encoded(db: ReadSnapshot) -> dict[str, object] | None:
        values = lookup(db)
        return {name: msgspec.Raw(encode(value)) for name, value in (values or {}).items()} or None

    return VaultBody(data=await call.parts.store.read_any(encoded))
