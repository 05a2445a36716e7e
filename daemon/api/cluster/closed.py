"""Routes that show names of everything: closed to callers without a token."""

from collections.abc import Iterable

from daemon.acl.grant import Grant
from daemon.api.cluster.gauges import Gauge
from daemon.web.request import Request
from storage.errors import Denied
from storage.records.acl import ANONYMOUS


def seen_metrics(request: Request, found: Iterable[Gauge]) -> list[Gauge]:
    """Return the metrics that the caller may see: all with `agent:read` or where a setting opens them.

    Others with a token get those of their namespaces and of the machine. Raises `Denied` for the rest.
    """
    grant = request.caller.grant
    if request.parts.config.metrics_public or grant.may_in("agent", "read"):
        return list(found)
    if _is_stranger(request):
        raise Denied
    return [one for one in found if _may_see(grant, one.labels.get("namespace"))]


def _may_see(grant: Grant, namespace: str | None) -> bool:
    return namespace is None or grant.may(namespace, "read-job", "list-jobs")


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
