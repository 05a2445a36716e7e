"""Access rules of routes that show names from all namespaces: they require a token."""

from collections.abc import Iterable

from daemon.acl.grant import CapabilitySet
from daemon.api.cluster.gauges import GaugeValue
from daemon.web.request import Request
from storage.errors import Denied
from storage.records.acl import ANONYMOUS


def visible_metrics(request: Request, gauges: Iterable[GaugeValue]) -> list[GaugeValue]:
    """Return the metrics that the caller may see.

    Callers with `agent:read` see all metrics, and with `metrics_public` all callers do. Other
    tokens see the metrics of their namespaces and of the host. Raises `Denied` without a token.
    """
    grant = request.caller.grant
    if request.parts.config.metrics_public or grant.may_in("agent", "read"):
        return list(gauges)
    if _is_stranger(request):
        raise Denied
    return [gauge for gauge in gauges if _may_see(grant, gauge.labels.get("namespace"))]


def _may_see(grant: CapabilitySet, namespace: str | None) -> bool:
    return namespace is None or grant.may(namespace, "read-job", "list-jobs")


def check_events(request: Request) -> None:
    """Raise `Denied` for a caller without a token, unless `metrics_public` is set.

    When a caller loses all its rights, its stream ends.
    """
    if _is_stranger(request) or _has_any_capability(request.caller.grant):
        request.check(lambda caller: _has_any_capability(caller.grant))


def _is_stranger(request: Request) -> bool:
    config = request.parts.config
    if config.metrics_public or not config.asks_for_tokens:
        return False
    return request.caller.token.accessor == ANONYMOUS


def _has_any_capability(grant: CapabilitySet) -> bool:
    return grant.everything or bool(grant.namespaces.all or grant.pools.all or grant.scopes)
