"""Endpoints for features that a single node does not have, and for incomplete paths.

Some tools always request such an endpoint, and accept an empty list. For features of Nomad
Enterprise, the error is the same as in Nomad's open edition.
"""

from daemon.web import reply
from daemon.web.reply import HandlerReply, text
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.read_pool import ReadSnapshot

_INDEX = 1  # there has never been an object


def empty_list(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return an empty list."""
    return reply.read_reply([], _INDEX)


def unknown_volume(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Reject the request: the volume does not exist."""
    raise NotFound("volume not found", index=_INDEX)


def unknown_plugin(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Reject the request: the plug-in does not exist."""
    raise NotFound("plugin not found", index=_INDEX)


# Paths that end where a name should be, and Nomad's error for them.
_INCOMPLETE = {
    "/v1/acl/auth-method/": "missing ACL auth-method name",
    "/v1/acl/binding-rule/": "missing ACL binding rule ID",
    "/v1/acl/policy/": "Missing Policy Name",
    "/v1/acl/role/": "missing ACL role ID",
    "/v1/acl/role/name/": "missing ACL role name",
    "/v1/acl/token/": "Missing Token Accessor",
    "/v1/namespace/": "Missing Namespace Name",
    "/v1/service/": "missing service name",
    "/v1/var/": "missing variable path",
}


def incomplete(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Reject a path that lacks a name. Raises `Malformed`."""
    raise Malformed(_INCOMPLETE[request.path])


def unsupported(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Reject the request: this edition lacks the feature."""
    return text("Enterprise only endpoint", 501)
