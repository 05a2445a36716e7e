"""Rows in the order of their making, from any of them on: a page reads no row before its first."""

import sqlite3
from collections.abc import Iterator, Mapping

import msgspec

from storage.readers import Snapshot

Key = tuple[str | int, ...]
_SELECTIVE = 4  # characters of a prefix that leave few enough rows to be sorted


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a listing shows, and from where on: conditions are constant text, values are not."""

    namespace: str  # `*`: all
    prefix: str = ""  # of the id
    conditions: tuple[str, ...] = ()
    values: Mapping[str, object] = {}
    start: Key | None = None  # the first row; None: from the beginning
    reverse: bool = False


def by_creation(db: Snapshot, select: str, wish: Wish) -> Iterator[sqlite3.Row]:
    """Yield rows with `create_index`, `id` and `namespace` in the order of their making."""
    conditions, values = list(wish.conditions), {**wish.values, "prefix": wish.prefix}
    if wish.namespace != "*":
        # Few rows of a job are found by an index and sorted; many of a namespace come in order.
        of_job = any(one.startswith("job_id =") for one in conditions)
        conditions.append("namespace = :namespace" if of_job else "+namespace = :namespace")
        values["namespace"] = wish.namespace
    if wish.prefix:
        # Few rows are found by their prefix and sorted; many come in order.
        sign = "" if len(wish.prefix) >= _SELECTIVE else "+"
        conditions.append(f"{sign}id >= :prefix AND {sign}id < :prefix || 'g'")  # hexadecimal
    if wish.start is not None:
        conditions.append(f"(create_index, id) {'<=' if wish.reverse else '>='} (:first, :second)")
        values["first"], values["second"] = wish.start
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    way = " DESC" if wish.reverse else ""
    return db.each(f"{select}{where} ORDER BY create_index{way}, id{way}", values)
