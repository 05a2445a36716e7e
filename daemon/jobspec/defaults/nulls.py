"""Defaults in the place of null: in documents that have all their fields, as a parsed job has."""

from daemon.jobspec.defaults.blocks import DEFAULT_WEIGHT
from storage.records.codec import Document


def fill(document: Document, defaults: Document) -> None:
    """Put defaults where null stands, or nothing."""
    for name, value in defaults.items():
        if document.get(name) is None:
            document[name] = list(value) if isinstance(value, list) else value


def fill_empty(document: Document, defaults: Document) -> None:
    """Put defaults where there is empty text, or nothing."""
    for name, value in defaults.items():
        document[name] = document.get(name) or value


def with_defaults(document: Document | None, defaults: Document) -> Document:
    """Return a block, a new one where there is none, with defaults where null stands."""
    copy = dict(document or {})
    fill(copy, defaults)
    return copy


def weigh_null(document: Document) -> None:
    """Give weight to the affinities and spreads of something that have none, in place."""
    for name in ("Affinities", "Spreads"):
        for item in document.get(name) or ():
            fill(item, {"Weight": DEFAULT_WEIGHT})
