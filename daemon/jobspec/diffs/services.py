"""Diffs of services. Services have no stable names, so the diff pairs them by similarity."""

from daemon.jobspec.diffs.blocks import identity
from daemon.jobspec.diffs.flat import Flat, free_values, own_values
from daemon.jobspec.diffs.primitives import (
    BeforeAfter,
    Objects,
    block,
    by_key,
    diff_each,
    pair_by_position,
    texts,
)
from storage.records.task import Check, CheckRestart, Service, Weights

# Similarity weights. The position alone, or the port alone, is not enough to pair two services.
_SAME_PORT, _SAME_NAME = 2, 3  # the same position counts 1
_TOO_LITTLE = 2


def services(both: BeforeAfter[list[Service]]) -> Objects:
    """Compare services."""
    old, new = both.old or [], both.new or []
    is_one = len(old) == len(new) == 1
    return diff_each(pair_by_position(both) if is_one else _most_similar_pairs(old, new), _service)


def _most_similar_pairs(old: list[Service], new: list[Service]) -> list[BeforeAfter[Service]]:
    left = dict(enumerate(new))
    pairs = []
    for position, service in enumerate(old):
        likeness = {
            index: _similarity(service, candidate) + (index == position)
            for index, candidate in left.items()
        }
        best = max(likeness, key=lambda index: likeness[index], default=-1)
        is_match = likeness.get(best, 0) > _TOO_LITTLE
        pairs.append(BeforeAfter(service, left.pop(best) if is_match else None))
    return [*pairs, *(BeforeAfter(None, service) for service in left.values())]


def _similarity(service: Service, other: Service) -> int:
    same_port, same_name = service.port_label == other.port_label, service.name == other.name
    return _SAME_PORT * same_port + _SAME_NAME * same_name


def _service(both: BeforeAfter[Service]) -> Objects:
    nested = [
        *texts("CanaryTags", both.of(lambda service: service.canary_tags)),
        *texts("Tags", both.of(lambda service: service.tags)),
        *diff_each(
            by_key(both.of(lambda service: service.checks), lambda check: check.name), _check
        ),
        *block("ConsulConnect", both.of(lambda service: service.connect), flat=free_values),
        *identity(both.of(lambda service: service.identity)),
        *block("Weights", both.of(lambda service: service.weights), flat=_weights),
    ]
    return block("Service", both, objects=nested)


def _check(both: BeforeAfter[Check]) -> Objects:
    header = both.of(lambda check: check.header)
    nested = [
        *block("Header", BeforeAfter(header.old or {}, header.new or {}), flat=free_values),
        *block("CheckRestart", both.of(lambda check: check.check_restart), flat=_with_grace),
    ]
    return block("Check", both, objects=nested)


def _with_grace(restart: CheckRestart) -> Flat:
    grace = {} if restart.grace is None else {"Grace": str(restart.grace)}
    return own_values(restart) | grace


def _weights(weights: Weights) -> Flat:
    weights_by_name = {"Passing": weights.passing, "Warning": weights.warning}
    return {name: str(weight) for name, weight in weights_by_name.items() if weight > 0}
