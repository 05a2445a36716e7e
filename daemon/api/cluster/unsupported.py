"""Endpoints for features that a single node does not have: empty lists, and errors.

Tools call some of them by default and accept an empty list. Features of Nomad's paid edition return
the error of the free one.
"""

from daemon.web import reply
from daemon.web.reply import HandlerReply, text
from daemon.web.request import Request
from storage.errors import NotFound
from storage.read_pool import ReadSnapshot

_INDEX = 1  # there has never been an object


def empty_list(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return an empty list."""
    return reply.read_reply([], _INDEX)


def unknown_volume(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return that the volume does not exist."""
    raise NotFound("volume not found", index=_INDEX)


def unknown_plugin(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return that the plug-in does not exist."""
    raise NotFound("plugin not found", index=_INDEX)


def unsupported(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return that this edition lacks the feature."""
    return text("Enterprise only endpoint", 501)
