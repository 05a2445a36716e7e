"""Defaults for null fields, in documents that list every field, such as parsed jobs."""

from daemon.jobspec.defaults.blocks import DEFAULT_WEIGHT
from storage.records.codec import Document


def replace_nulls(document: Document, defaults: Document) -> None:
    """Replace null fields with their defaults."""
    for name, value in defaults.items():
        if document.get(name) is None:
            document[name] = list(value) if isinstance(value, list) else value


def fill_empty(document: Document, defaults: Document) -> None:
    """Replace empty text fields with their defaults."""
    for name, value in defaults.items():
        document[name] = document.get(name) or value


def with_defaults(document: Document | None, defaults: Document) -> Document:
    """Return a block with defaults instead of null fields; without a block, return a new block."""
    copy = dict(document or {})
    replace_nulls(copy, defaults)
    return copy


def weigh_null(document: Document) -> None:
    """Set default weights of unweighted affinities and spreads, in place."""
    for name in ("Affinities", "Spreads"):
        for entry in document.get(name) or ():
            replace_nulls(entry, {"Weight": DEFAULT_WEIGHT})
