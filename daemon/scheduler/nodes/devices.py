"""Device requests: match them to a node's devices, and choose free instances.

A node lists devices by kind: vendor, type, name, attributes and instances. A request names a type,
`vendor/type` or `vendor/type/name`. All instances of one request have the same kind.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from daemon.scheduler.nodes.constraints import compare
from storage.records.allocation import AllocatedDevice
from storage.records.base import Record
from storage.records.constraints import Affinity, Constraint
from storage.records.node import Node
from storage.records.task import Device


class DeviceInstance(Record, frozen=True, kw_only=True):
    """One device that can be assigned to a task."""

    id: str
    healthy: bool = True


class DeviceKind(Record, frozen=True, kw_only=True):
    """A group of identical devices of a node."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    attributes: dict[str, object] | None = None
    instances: list[DeviceInstance] | None = None

    def usable(self, taken_ids: Collection[str]) -> list[str]:
        """Return the sorted IDs of healthy, free instances."""
        return sorted(
            instance.id
            for instance in self.instances or ()
            if instance.healthy and instance.id not in taken_ids
        )


class DeviceOffer(msgspec.Struct, frozen=True):
    """The instances for a request, and the sum of the weights of matching affinities."""

    kind: DeviceKind
    ids: list[str]
    score: float

    def record(self) -> AllocatedDevice:
        """Return the offer as stored in an allocation."""
        return AllocatedDevice(
            vendor=self.kind.vendor,
            type=self.kind.type,
            name=self.kind.name,
            device_ids=self.ids,
        )


def kinds_of(node: Node) -> list[DeviceKind]:
    """Return the kinds of devices of a node."""
    return msgspec.convert(node.node_resources.devices or [], list[DeviceKind])


def has_all(node: Node, requests: Collection[Device]) -> bool:
    """Return whether the node could satisfy all requests if no allocation used it."""
    return choose(kinds_of(node), requests, frozenset()) is not None


def choose(
    kinds: Collection[DeviceKind], requests: Collection[Device], used_ids: Collection[str]
) -> list[DeviceOffer] | None:
    """Return free instances for each request, best kind first; None if there are too few."""
    offers: list[DeviceOffer] = []
    taken_ids = set(used_ids)
    for request in requests:
        offer = _offer(kinds, request, taken_ids)
        if offer is None:
            return None
        offers.append(offer)
        taken_ids.update(offer.ids)
    return offers


def _offer(
    kinds: Collection[DeviceKind], request: Device, taken_ids: Collection[str]
) -> DeviceOffer | None:
    possible = [
        DeviceOffer(kind, kind.usable(taken_ids)[: request.count], _score(kind, request))
        for kind in kinds
        if _suits(kind, request)
    ]
    full = [offer for offer in possible if len(offer.ids) == request.count]
    return max(full, key=lambda offer: offer.score, default=None)


def _suits(kind: DeviceKind, request: Device) -> bool:
    names = request.name.split("/")
    names_by_length = {
        1: [kind.type],
        2: [kind.vendor, kind.type],
        3: [kind.vendor, kind.type, kind.name],
    }
    return names_by_length.get(len(names)) == names and all(
        _matches_condition(constraint, kind) for constraint in request.constraints or ()
    )


def _score(kind: DeviceKind, request: Device) -> float:
    return sum(
        affinity.weight
        for affinity in request.affinities or ()
        if _matches_condition(affinity, kind)
    )


def weights_of(requests: Collection[Device]) -> float:
    """Return the sum of the absolute affinity weights of the requests."""
    return sum(
        abs(affinity.weight) for request in requests for affinity in request.affinities or ()
    )


def _matches_condition(condition: Constraint | Affinity, kind: DeviceKind) -> bool:
    left, right = _resolve(condition.l_target, kind), _resolve(condition.r_target, kind)
    return compare(condition.operand, left, right)


def _resolve(target: str, kind: DeviceKind) -> str | None:
    if not target.startswith("${"):
        return target
    match target[2:].removesuffix("}").split(".", 2):
        case ["device", "vendor"]:
            return kind.vendor
        case ["device", "type"]:
            return kind.type
        case ["device", "model"]:
            return kind.name
        case ["device", "ids"]:
            return ",".join(instance.id for instance in kind.instances or ())
        case ["device", "attr", name]:
            return next(_values((kind.attributes or {}).get(name)), None)
        case _:
            return None


def _values(attribute: object) -> Iterator[str]:
    """Yield the value of an attribute, such as 8 for `8` or `{"Int": 8, "Unit": "GiB"}`."""
    if isinstance(attribute, Mapping):
        for form in ("String", "Int", "Float", "Bool"):
            if attribute.get(form) is not None:
                yield from _values(attribute[form])
    elif attribute is not None:
        yield str(attribute).lower() if isinstance(attribute, bool) else str(attribute)
