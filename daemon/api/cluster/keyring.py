"""The keys that sign identity tokens: list them, make a new one, forget one."""

from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.signing import SigningKey


class RootKeyMeta(Record, frozen=True, kw_only=True):
    """What the peer's clients read of a key; times are nanoseconds."""

    key_id: str
    algorithm: str
    state: str
    create_time: int
    publish_time: int
    create_index: int = 0
    modify_index: int = 0


class RotateResponse(Record, frozen=True, kw_only=True):
    """What the peer's clients read after a rotation."""

    key: RootKeyMeta
    index: int = 0


def index(request: Request, db: Snapshot) -> Reply:
    """List the keys by which signatures can be checked; the newest that is not to come signs."""
    issuer = request.parts.issuer
    active = issuer.active.id
    shown = [_meta(key, "active" if key.id == active else "inactive") for key in issuer.keys]
    return reply.read(shown, db.table_index("signing_keys"))


async def rotate(request: Request) -> Reply:
    """Have a new key sign from now on; the old one stays until nothing that it has signed is in use."""
    key = await request.parts.issuer.rotate(at_once=True)
    at = request.parts.store.read(lambda db: db.table_index("signing_keys"))
    return Reply(body=RotateResponse(key=_meta(key, "active"), index=at), index=at)


async def remove(request: Request) -> Reply:
    """Forget a key, with `force` also one whose signatures may be in use."""
    await request.parts.issuer.remove(request["key_id"], force=request.query.flag("force"))
    at = request.parts.store.read(lambda db: db.table_index("signing_keys"))
    return Reply(body={"Index": at}, index=at)


def unknown(request: Request, db: Snapshot) -> Reply:
    """Answer for a question about the keys that there is not."""
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
