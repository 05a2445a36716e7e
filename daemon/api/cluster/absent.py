"""What clients ask about and one machine does not have: empty lists, and plain refusals.

Tools ask some of this in passing, and take an empty list for an answer; what only the peer's paid
edition does is refused as its free one refuses it.
"""

from daemon.web import reply
from daemon.web.reply import Reply, text
from daemon.web.request import Request
from storage.errors import NotFound
from storage.readers import Snapshot

_INDEX = 1  # there has never been one


def nothing(request: Request, db: Snapshot) -> Reply:
    """List none."""
    return reply.read([], _INDEX)


def unknown_volume(request: Request, db: Snapshot) -> Reply:
    """Find none."""
    raise NotFound("volume not found", index=_INDEX)


def unknown_plugin(request: Request, db: Snapshot) -> Reply:
    """Find none."""
    raise NotFound("plugin not found", index=_INDEX)


def not_offered(request: Request, db: Snapshot) -> Reply:
    """Say that this is not part of this edition."""
    return text("Enterprise only endpoint", 501)
