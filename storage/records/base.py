"""What all nouns share: frozen structs whose names on the wire follow from their names here.

A field `max_file_size_mb` is `MaxFileSizeMB` in every document: API, file, diff and filter
expressions. The words below are the only ones that are not simply capitalised.
"""

from typing import Annotated

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
    """Return the name of a field on the wire, as the peer's clients spell it."""
    return "".join(_WORDS.get(word, word.capitalize()) for word in field.split("_"))


class Record(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """Base of every noun. Subclasses repeat `frozen` and `kw_only`: msgspec does not inherit them."""


class SparseRecord(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name, omit_defaults=True):
    """A noun whose empty fields are absent from its documents instead of null or zero."""


# Integers carry the width that the peer's clients use, because an error names it
# ("json: cannot unmarshal number -1 into ... of type uint64").
Duration = Annotated[int, msgspec.Meta(extra={"go": "time.Duration"})]
Int8 = Annotated[int, msgspec.Meta(extra={"go": "int8"})]
Int64 = Annotated[int, msgspec.Meta(extra={"go": "int64"})]
Uint8 = Annotated[int, msgspec.Meta(extra={"go": "uint8"})]
Uint64 = Annotated[int, msgspec.Meta(extra={"go": "uint64"})]

# Time and size in the units of the wire.
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
