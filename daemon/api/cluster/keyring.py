"""Signing keys of workload identity tokens: list, rotate, delete."""

import re

from daemon.text.go_format import quote
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Refused
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.numbers import parse_integer
from storage.records.signing import SigningKey

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_INT64 = range(-(2**63), 2**63)


class RootKeyMeta(Record, frozen=True, kw_only=True):
    """The metadata of a key in Nomad's form; times are in nanoseconds."""

    key_id: str
    algorithm: str
    state: str
    create_time: int
    publish_time: int
    create_index: int = 0
    modify_index: int = 0


class RotateResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a rotation."""

    key: RootKeyMeta
    index: int = 0


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the keys for verification; the newest active key is used for signing."""
    keys = [_meta(request, key) for key in request.parts.issuer.keys]
    return reply.read_reply(keys, db.table_index("signing_keys"))


async def rotate(request: Request) -> HandlerReply:
    """Create a new key; the old key stays until its last signature has expired.

    The new key signs immediately, or from `publish_time`. Raises `Refused` or `Malformed`.
    """
    signs_from = _publish_time(request.query.text("publish_time"))
    if signs_from > 0 and "full" in request.query:
        raise Refused("keyring cannot be prepublished and full rotated at the same time")
    key = await request.parts.issuer.rotate(signs_from=signs_from)
    new_index = request.parts.store.read(lambda db: db.table_index("signing_keys"))
    return HandlerReply(
        body=RotateResponse(key=_meta(request, key), index=new_index), index=new_index
    )


def _publish_time(text: str) -> int:
    """Return the time in `text` in nanoseconds, or 0 for an empty string.

    Raises `Refused`, as Nomad does.
    """
    if not text:
        return 0
    if not _INTEGER.fullmatch(text):
        raise Refused(
            f"invalid publish_time: strconv.ParseInt: parsing {quote(text)}: invalid syntax"
        )
    if (time := parse_integer(text)) not in _INT64:
        raise Refused(
            f"invalid publish_time: strconv.ParseInt: parsing {quote(text)}: value out of range"
        )
    return time


async def remove(request: Request) -> HandlerReply:
    """Delete a key; `force` deletes it even if its signatures may still be valid."""
    await request.parts.issuer.remove(request["key_id"], force=request.query.flag("force"))
    new_index = request.parts.store.read(lambda db: db.table_index("signing_keys"))
    return HandlerReply(body={"Index": new_index}, index=new_index)


def unknown(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Reject an unknown kind of request about keys."""
    del request, db
    return reply.text("Invalid method", 405)


def _meta(request: Request, key: SigningKey) -> RootKeyMeta:
    return RootKeyMeta(
        key_id=key.id,
        algorithm=key.public.alg,
        state=_state(request, key),
        create_time=key.created_at,
        publish_time=key.signs_from,
    )


def _state(request: Request, key: SigningKey) -> str:
    if key.id == request.parts.issuer.active.id:
        return "active"
    return "prepublished" if key.signs_from > request.parts.clock.now() else "inactive"
