"""Signing keys of workload identity tokens: list, rotate, delete."""

from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.signing import SigningKey


class RootKeyMeta(Record, frozen=True, kw_only=True):
    """The metadata of a key in Nomad's form; times are nanoseconds."""

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
    """List the keys for verification; the newest one that is active signs."""
    issuer = request.parts.issuer
    active = issuer.active.id
    shown = [_meta(key, "active" if key.id == active else "inactive") for key in issuer.keys]
    return reply.read_reply(shown, db.table_index("signing_keys"))


async def rotate(request: Request) -> HandlerReply:
    """Create and activate a new key; the old one stays until its last signature has expired."""
    key = await request.parts.issuer.rotate(at_once=True)
    at = request.parts.store.read(lambda db: db.table_index("signing_keys"))
    return HandlerReply(body=RotateResponse(key=_meta(key, "active"), index=at), index=at)


async def remove(request: Request) -> HandlerReply:
    """Delete a key; `force` deletes it even if its signatures may still be valid."""
    await request.parts.issuer.remove(request["key_id"], force=request.query.flag("force"))
    at = request.parts.store.read(lambda db: db.table_index("signing_keys"))
    return HandlerReply(body={"Index": at}, index=at)


def unknown(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return that the request about keys is unknown."""
    del request, db
    return reply.text("Invalid method", 405)


def _meta(key: SigningKey, state: str) -> RootKeyMeta:
    return RootKeyMeta(
        key_id=key.id,
        algorithm=key.public.alg,
        state=state,
        create_time=key.created_at,
        publish_time=key.created_at,
    )
