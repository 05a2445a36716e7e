"""Services: none has a name that stays, so it is guessed which one became which."""

from daemon.jobspec.diffs.blocks import identity
from daemon.jobspec.diffs.flat import Flat, free_values, own_values
from daemon.jobspec.diffs.parts import Both, Objects, block, by_key, by_place, each, texts
from storage.records.task import Check, CheckRestart, Service, Weights

# What speaks for two services being the same one; the place alone, or the port, is too little.
_SAME_PORT, _SAME_NAME = 2, 3  # the same place counts 1
_TOO_LITTLE = 2


def services(both: Both[list[Service]]) -> Objects:
    """Compare services."""
    old, new = both.old or [], both.new or []
    is_one = len(old) == len(new) == 1
    return each(by_place(both) if is_one else _likeliest(old, new), _service)


def _likeliest(old: list[Service], new: list[Service]) -> list[Both[Service]]:
    left = dict(enumerate(new))
    found = []
    for place, service in enumerate(old):
        likeness = {at: _likeness(service, one) + (at == place) for at, one in left.items()}
        best = max(likeness, key=lambda at: likeness[at], default=-1)
        is_match = likeness.get(best, 0) > _TOO_LITTLE
        found.append(Both(service, left.pop(best) if is_match else None))
    return [*found, *(Both(None, service) for service in left.values())]


def _likeness(one: Service, other: Service) -> int:
    same_port, same_name = one.port_label == other.port_label, one.name == other.name
    return _SAME_PORT * same_port + _SAME_NAME * same_name


def _service(both: Both[Service]) -> Objects:
    nested = [
        *texts("CanaryTags", both.of(lambda one: one.canary_tags)),
        *texts("Tags", both.of(lambda one: one.tags)),
        *each(by_key(both.of(lambda one: one.checks), lambda check: check.name), _check),
        *block("ConsulConnect", both.of(lambda one: one.connect), flat=free_values),
        *identity(both.of(lambda one: one.identity)),
        *block("Weights", both.of(lambda one: one.weights), flat=_weights),
    ]
    return block("Service", both, objects=nested)


def _check(both: Both[Check]) -> Objects:
    header = both.of(lambda one: one.header)
    nested = [
        *block("Header", Both(header.old or {}, header.new or {}), flat=free_values),
        *block("CheckRestart", both.of(lambda one: one.check_restart), flat=_with_grace),
    ]
    return block("Check", both, objects=nested)


def _with_grace(restart: CheckRestart) -> Flat:
    grace = {} if restart.grace is None else {"Grace": str(restart.grace)}
    return own_values(restart) | grace


def _weights(weights: Weights) -> Flat:
    known = {"Passing": weights.passing, "Warning": weights.warning}
    return {name: str(weight) for name, weight in known.items() if weight > 0}
