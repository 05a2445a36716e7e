"""Mapping of a token's claims to values for binding rules and names. No I/O.

A mapping selects a claim by its name or by a JSON pointer (`/roles/0`), and gives its value a new
name. The names of roles, policies and tokens may refer to such values: `${value.team}-admins`.
"""

import re
from collections.abc import Mapping

import msgspec

from storage.errors import Malformed
from storage.records.auth_method import AuthMethodConfig

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_LONGEST = 64 * 1024  # characters of an interpolated text


class MappedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The mapped claims of a token, as the selectors of binding rules see them."""

    value: dict[str, str]
    lists: dict[str, list[str]] = msgspec.field(name="list")


def map_claims(config: AuthMethodConfig, claims: Mapping[str, object]) -> MappedClaims:
    """Return the mapped claims. Raises `Malformed` for a claim whose type cannot be mapped."""
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for source, target in (config.claim_mappings or {}).items():
        if (claim := _find(claims, source)) is not None:
            text = _text(claim)
            if text is None:
                raise Malformed(f"claim '{source}' is an object and cannot be converted to string")
            values[target] = text
    for source, target in (config.list_claim_mappings or {}).items():
        if (claim := _find(claims, source)) is not None:
            lists[target] = _texts(source, claim)
    return MappedClaims(value=values, lists=lists)


def _find(claims: Mapping[str, object], source: str) -> object:
    """Return a claim by name or JSON pointer; None if there is no such claim."""
    if not source.startswith("/"):
        return claims.get(source)
    claim: object = claims
    for part in source[1:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(claim, dict):
            claim = claim.get(key)
        elif isinstance(claim, list) and re.fullmatch(r"[0-9]{1,6}", key):
            claim = claim[int(key)] if int(key) < len(claim) else None
        else:
            return None
    return claim


def _text(claim: object) -> str | None:
    """Return a claim as text, as Nomad writes it; None for an object."""
    match claim:
        case str():
            return claim
        case bool():
            return "true" if claim else "false"
        case int() | float():
            return str(int(claim))
        case list():
            return msgspec.json.encode(claim).decode()
        case _:
            return None


def _texts(source: str, claim: object) -> list[str]:
    items = claim if isinstance(claim, list) else [claim]
    texts = [_text(element) for element in items]
    if None in texts:
        raise Malformed(f'"{source}" list claim could not be converted to string list')
    return [text for text in texts if text]


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values in place of `${name}`. `$${` stands for `${`.

    Raises `Malformed` for an unknown name, and for any expression that is not a name.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = (match[1] or "").strip()
        if not match[0].endswith("}") or name not in values:
            names = ", ".join(sorted(values)) or "none"
            raise Malformed(f"unknown variable accessed: {name} (known: {names})")
        return values[name]

    interpolated = _REFERENCE.sub(replace, text)
    if len(interpolated) > _LONGEST:
        raise Malformed(f"the interpolated text is longer than {_LONGEST} characters")
    return interpolated
