"""Decoding of documents, so that an unreadable one is named."""

from typing import TypeVar

import msgspec

from storage.errors import StorageUnreadable

T = TypeVar("T")


def decode_document(document: bytes, record: type[T], name: str) -> T:
    """Decode the document of a row, selected as a BLOB.

    `name` names the row in the error, such as `node 1c2d…`. Raises `StorageUnreadable`.
    """
    try:
        return msgspec.json.decode(document, type=record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageUnreadable(f"the row of {name} in the store cannot be read: {error}") from None
