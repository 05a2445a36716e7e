"""Resource IDs of the cloud, parsed into parts. Comparisons ignore case.

Steward never copies a received ID into a URL. A URL contains only parsed parts, each of them
quoted.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote as url_quote

import msgspec

_PART = r"[^/?#\x00-\x1f\x7f]+"
_ID = re.compile(
    rf"/subscriptions/(?P<subscription>{_PART})/resourceGroups/(?P<group>{_PART})"
    rf"/providers/(?P<namespace>{_PART})(?P<rest>(?:/{_PART}/{_PART})+)",
    re.IGNORECASE,
)
_DOTS = frozenset({".", ".."})

VIRTUAL_MACHINE = "microsoft.compute/virtualmachines"
SCALE_SET = "microsoft.compute/virtualmachinescalesets"
SCALE_SET_INSTANCE = f"{SCALE_SET}/virtualmachines"


class ResourceID(msgspec.Struct, frozen=True):
    """A resource: subscription, resource group, type (`Namespace/type/subtype`) and names."""

    subscription: str
    group: str
    type: str
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the resource itself."""
        return self.names[-1]

    @property
    def namespace(self) -> str:
        """Return the provider namespace of the type."""
        return self.type.partition("/")[0]

    @property
    def path(self) -> str:
        """Return the URL path of the resource, with each part quoted."""
        kinds = self.type.split("/")[1:]
        pairs = [part for pair in zip(kinds, self.names, strict=True) for part in pair]
        parts = ["subscriptions", self.subscription, "resourceGroups", self.group]
        return path(*parts, "providers", self.namespace, *pairs)

    def is_same(self, other: "ResourceID") -> bool:
        """Return whether both IDs name the same resource."""
        return self.path.lower() == other.path.lower()

    def is_part_of(self, other: "ResourceID") -> bool:
        """Return whether this resource is a child of `other`, as an instance of a scale set is."""
        return self.path.lower().startswith(f"{other.path.lower()}/")

    def is_within(self, subscription: str, group: str) -> bool:
        """Return whether the resource is in this group of this subscription."""
        return same(self.subscription, subscription) and same(self.group, group)


def path(*parts: str) -> str:
    """Return a URL path that consists of the parts, each of them quoted."""
    return "".join(f"/{url_quote(part, safe='')}" for part in parts)


def parse(text: str | None) -> ResourceID | None:
    """Parse a resource ID; None if it is invalid."""
    match = _ID.fullmatch((text or "").rstrip("/"))
    if match is None:
        return None
    parts = match["rest"].split("/")[1:]
    kinds, names = parts[::2], tuple(parts[1::2])
    if _DOTS & {match["subscription"], match["group"], match["namespace"], *parts}:
        return None
    kind = "/".join([match["namespace"], *kinds])
    return ResourceID(match["subscription"], match["group"], kind, names)


def same(text: str, other: str) -> bool:
    """Return whether two names are equal; the cloud ignores case."""
    return text.lower() == other.lower()


def contains(names: Sequence[str] | None, name: str) -> bool:
    """Return whether a list contains a name, ignoring case."""
    return any(same(candidate, name) for candidate in names or ())
