"""The JSON form of all records: wire names, and decoding that accepts Go's nulls.

For example, the wire name of the field `memory_max_mb` is `MemoryMaxMB`. Unknown fields are
ignored, so that the library works with newer servers. A null gives a field its default.
"""

from typing import TypeVar

import msgspec

from steward_client.errors import InvalidResponse

T = TypeVar("T")

# The errors of a decoder for bytes that are not JSON of the expected type, or are nested too deeply.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

SECOND = 1_000_000_000  # nanoseconds: the unit of durations and times on the wire

_WORDS = {
    "cni": "CNI",
    "cpu": "CPU",
    "dns": "DNS",
    "fs": "FS",
    "grpc": "GRPC",
    "hcl": "HCL",
    "http": "HTTP",
    "id": "ID",
    "ids": "IDs",
    "ip": "IP",
    "mb": "MB",
    "mbits": "MBits",
    "tg": "TG",
    "tls": "TLS",
    "ttl": "TTL",
    "ui": "UI",
    "url": "URL",
}


def wire_name(field: str) -> str:
    """Return the wire name of a field, as Nomad spells it."""
    return "".join(_WORDS.get(word, word.capitalize()) for word in field.split("_"))


class Definition(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name, omit_defaults=True):
    """The base of all parts of a job. The server sets absent fields."""


class Record(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """The base of all records that the server sends."""


def seconds(number: float) -> int:
    """Return a duration in seconds as nanoseconds."""
    return round(number * SECOND)


def decode(body: bytes, kind: type[T]) -> T:
    """Return decoded JSON. Raises `InvalidResponse` if it does not have this type."""
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(body)), kind)
    except UNREADABLE as error:
        beginning = body[:200].decode(errors="replace")
        raise InvalidResponse(
            f"the response does not have the form of this API: {error}; it starts with {beginning!r}"
        ) from (error)


def convert(value: object, kind: type[T]) -> T:
    """Return a part of a response as a record. Raises `InvalidResponse`."""
    try:
        return msgspec.convert(value, kind)
    except UNREADABLE as error:
        raise InvalidResponse(
            f"the response does not have the form of this API: {error}"
        ) from error


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
