"""Routes that show names of everything: closed to callers without a token."""

from daemon.acl.grant import Grant
from daemon.web.request import Request
from storage.errors import Denied
from storage.records.acl import ANONYMOUS


def check_metrics(request: Request) -> None:
    """Raise `Denied` for a caller without a token, unless a setting or the policy `anonymous` opens."""
    if _is_stranger(request) and not request.caller.grant.may_in("agent", "read"):
        raise Denied


def check_events(request: Request) -> None:
    """Raise `Denied` for a caller without a token who may see nothing, unless a setting opens."""
    if _is_stranger(request) and not _opens_anything(request.caller.grant):
        raise Denied


def _is_stranger(request: Request) -> bool:
    config = request.parts.config
    if config.metrics_public or not config.asks_for_tokens:
        return False
    return request.caller.token.accessor == ANONYMOUS


def _opens_anything(grant: Grant) -> bool:
    return grant.everything or bool(grant.namespaces.all or grant.pools.all or grant.scopes)
