"""Validation of identifiers and prefixes in paths, with the error texts of Nomad."""

import re

from storage.errors import Refused

LENGTH = 36
_HYPHENS = 4


def check_id(noun: str, text: str) -> None:
    """Raise `Refused` unless `text` is a valid identifier.

    `noun` begins the error text, for example `alloc` (source: Nomad's recorded responses
    `evaluations-allocations`).
    """
    if len(text) != LENGTH:
        raise Refused(f"{noun} lookup failed: index error: UUID must be 36 characters")
    check_prefix(noun, text)


def check_prefix(noun: str, text: str) -> None:
    """Raise `Refused` unless an identifier can begin with `text`."""
    hyphens = text.count("-")
    if hyphens > _HYPHENS:
        raise Refused(
            f'{noun} lookup failed: index error: UUID should have maximum of 4 "-"; got {hyphens}'
        )
    digits = text.replace("-", "")
    if len(digits) % 2:
        raise Refused(
            f"{noun} lookup failed: index error: Input (without hyphens) must be even length"
        )
    if wrong := re.search(r"[^0-9a-fA-F]", digits):
        byte = wrong[0].encode()[0]
        raise Refused(
            f"{noun} lookup failed: index error: Invalid UUID: encoding/hex: invalid byte: "
            f"U+{byte:04X} '{chr(byte)}'"
        )
