"""The base of all record types: frozen structs whose wire names follow from their field names.

A field `max_file_size_mb` is `MaxFileSizeMB` in every document: API, files, diffs and filter
expressions. The table below lists the only words that are not simply capitalized.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import msgspec

_WORDS = {
    "acl": "ACL",
    "api": "API",
    "cidr": "CIDR",
    "cni": "CNI",
    "fs": "FS",
    "cpu": "CPU",
    "csi": "CSI",
    "dns": "DNS",
    "grpc": "GRPC",
    "hcl": "HCL",
    "hclv1": "HCLv1",
    "http": "HTTP",
    "id": "ID",
    "ids": "IDs",
    "iops": "IOPS",
    "ip": "IP",
    "ipv6": "IPv6",
    "mb": "MB",
    "mbits": "MBits",
    "numa": "NUMA",
    "selinux": "SELinux",
    "tg": "TG",
    "tls": "TLS",
    "ttl": "TTL",
    "ui": "UI",
    "url": "URL",
}


def wire_name(field: str) -> str:
    """Return the wire name of a field, as Nomad's clients spell it."""
    return "".join(_WORDS.get(word, word.capitalize()) for word in field.split("_"))


class Record(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """The base of every record.

    Subclasses repeat `frozen` and `kw_only`: msgspec does not inherit them. `inert` has the fields of
    a request body that Steward stores or ignores without any effect, each with the reason.
    """

    inert: ClassVar[Mapping[str, str]] = {}


def inert_fields(record: msgspec.Struct) -> Iterator[str]:
    """Yield a warning for each field of a request body that is set and has no effect.

    The fields of a direct member are included, but not those of a list's members.
    """
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        reason = getattr(record, "inert", {}).get(field.name)
        if reason and value and value != field.default:
            yield f'field "{field.encode_name}" has no effect: {reason}'
        elif isinstance(value, Record) and value.inert:
            yield from inert_fields(value)


class SparseRecord(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name, omit_defaults=True):
    """A record that omits empty fields in its documents, instead of writing null or zero."""


# The types state the widths of integers in Nomad's clients, because errors name them ("json: cannot
# unmarshal number -1 into ... of type uint64").
Duration = Annotated[int, msgspec.Meta(extra={"go": "time.Duration"})]
# Nomad's clients send some durations as text, `24h0m0s`. Requests accept both forms, responses have
# numbers.
Span = Annotated[int, msgspec.Meta(extra={"go": "time.Duration", "text": "yes"})]
Int8 = Annotated[int, msgspec.Meta(extra={"go": "int8"})]
Int64 = Annotated[int, msgspec.Meta(extra={"go": "int64"})]
Uint8 = Annotated[int, msgspec.Meta(extra={"go": "uint8"})]
Uint64 = Annotated[int, msgspec.Meta(extra={"go": "uint64"})]

# Time and size in wire units.
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
