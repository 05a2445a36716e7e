"""Pagination in creation order: to read a page, SQLite reads no rows of earlier pages."""

import re
import sqlite3
from collections.abc import Iterator, Mapping

import msgspec

from storage.read_pool import ReadSnapshot

Key = tuple[str | int, ...]
HIGHEST = 2**63 - 1  # the largest number of SQLite
LAST = "\U0010ffff"  # sorts after every name
_LONGEST_PART = 1000  # characters; SQLite has a limit for patterns
_SPECIAL = re.compile(r"[%_!]")
_SELECTIVE = 4  # characters; longer prefixes match few enough rows to sort them


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page of rows. `conditions` are constant SQL, with parameters in `values`."""

    namespace: str  # `*` means all
    prefix: str = ""  # of the ID
    conditions: tuple[str, ...] = ()
    values: Mapping[str, object] = {}
    start: Key | None = None  # key of the first row; None means the beginning
    reverse: bool = False


class KeyRange(msgspec.Struct, frozen=True):
    """A part of a list of keys: up to `most` keys after `after`; a negative `most` means all."""

    after: str = ""
    most: int = -1

    @property
    def values(self) -> dict[str, object]:
        """Return the parameters `after` and `most` of a statement."""
        return {"after": self.after, "most": self.most}


ALL = KeyRange()


def numbers(start: Key | None, *, reverse: bool) -> dict[str, int]:
    """Return the SQL parameters `low` and `high` for a page whose keys are numbers.

    `start` is the first key of the page.
    """
    if start is None:
        return {"low": -1, "high": HIGHEST}
    first = int(start[0])
    return {"low": -1, "high": first} if reverse else {"low": first, "high": HIGHEST}


def by_creation(db: ReadSnapshot, select: str, page_request: PageRequest) -> Iterator[sqlite3.Row]:
    """Yield the rows of a page in creation order.

    The table must have the columns `create_index`, `id` and `namespace`.
    """
    where, values = _where(page_request)
    direction = " DESC" if page_request.reverse else ""
    return db.each(f"{select}{where} ORDER BY create_index{direction}, id{direction}", values)


def numbers_by_namespace(
    db: ReadSnapshot, select: str, page_request: PageRequest
) -> dict[str, int]:
    """Return the number of rows per namespace; `select` returns `namespace` and `number`."""
    where, values = _where(page_request)
    rows = db.each(f"{select}{where} GROUP BY namespace", values)
    return {row["namespace"]: row["number"] for row in rows}


def _where(page_request: PageRequest) -> tuple[str, dict[str, object]]:
    """Return the WHERE clause for the rows of a page, and its parameters.

    The table must have the columns `create_index`, `id` and `namespace`.
    """
    conditions, values = (
        list(page_request.conditions),
        {**page_request.values, "prefix": page_request.prefix},
    )
    if page_request.namespace != "*":
        # A job has few rows: SQLite finds them with an index, and sorts them. A namespace may have
        # many rows: SQLite reads them in order.
        of_job = any(condition.startswith("job_id =") for condition in conditions)
        conditions.append("namespace = :namespace" if of_job else "+namespace = :namespace")
        values["namespace"] = page_request.namespace
    if page_request.prefix:
        # A long prefix matches few rows: SQLite finds them by the prefix, and sorts them. A short
        # prefix may match many rows: SQLite reads them in order.
        sign = "" if len(page_request.prefix) >= _SELECTIVE else "+"
        # IDs are hexadecimal.
        conditions.append(f"{sign}id >= :prefix AND {sign}id < :prefix || 'g'")
    if page_request.start is not None:
        conditions.append(
            f"(create_index, id) {'<=' if page_request.reverse else '>='} (:first, :second)"
        )
        values["first"], values["second"] = page_request.start
    return f" WHERE {' AND '.join(conditions)}" if conditions else "", values


def like_part(text: str) -> str:
    """Return a pattern for `like(…, name, '!')` that matches names with `text` in them.

    Return an empty string if `text` is too long. SQLite's `like` ignores the case of ASCII letters
    only.
    """
    if len(text) > _LONGEST_PART:
        return ""
    return "%" + _SPECIAL.sub(r"!\g<0>", text) + "%"


_NAMESPACES = "SELECT name FROM namespaces WHERE name >= '' ORDER BY name"


def by_namespace(db: ReadSnapshot, page_request: PageRequest) -> Iterator[PageRequest]:
    """Yield one request per namespace if the request is for a prefix in all namespaces.

    Otherwise yield the request itself. Names with a common prefix are adjacent only within a
    namespace.
    """
    if page_request.namespace != "*" or not page_request.prefix:
        yield page_request
        return
    names = [row["name"] for row in db.all(_NAMESPACES)]
    first = page_request.start[0] if page_request.start else None
    for name in reversed(names) if page_request.reverse else names:
        if first is None or (name < str(first) if page_request.reverse else name > str(first)):
            yield msgspec.structs.replace(page_request, namespace=name, start=None)
        elif name == first:
            yield msgspec.structs.replace(page_request, namespace=name)


def key_range(page_request: PageRequest) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the lowest and the highest key of a list whose keys are namespace and name.

    With a prefix, the request must name a namespace; `by_namespace` makes such requests.
    """
    low, high = ("", ""), (LAST, LAST)
    if page_request.namespace != "*":
        low, high = (
            (page_request.namespace, page_request.prefix),
            (page_request.namespace, page_request.prefix + LAST),
        )
    if page_request.start is None:
        return low, high
    start = (str(page_request.start[0]), str(page_request.start[1]))
    return (low, min(high, start)) if page_request.reverse else (max(low, start), high)


def by_name(
    db: ReadSnapshot,
    select: str,
    column: str,
    page_request: PageRequest,
) -> Iterator[sqlite3.Row]:
    """Yield the rows whose name begins with the prefix of the request, sorted by name.

    `column` is the column that contains the name. The name is the last part of a page's key.
    """
    conditions, values = (
        list(page_request.conditions),
        {**page_request.values, "prefix": page_request.prefix},
    )
    if page_request.prefix:
        conditions.append(f"{column} >= :prefix AND {column} < :prefix || char(1114111)")
    if page_request.start is not None:
        first, name = page_request.start
        if first:  # beyond all keys, so the result is empty
            if not page_request.reverse:
                return iter(())
        else:
            conditions.append(f"{column} {'<=' if page_request.reverse else '>='} :first")
            values["first"] = name
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    return db.each(f"{select}{where} ORDER BY {column}{direction}", values)


def is_within(page_request: PageRequest, name: str) -> bool:
    """Return whether a name has the prefix of the request, and does not precede its start key."""
    if not name.startswith(page_request.prefix):
        return False
    if page_request.start is None:
        return True
    key = ("", name)
    return key <= page_request.start if page_request.reverse else key >= page_request.start


def of_job(
    db: ReadSnapshot, select: str, page_request: PageRequest, namespace: str, job_id: str
) -> Iterator[sqlite3.Row]:
    """Yield the objects of a job in creation order, then by ID, from the start key on."""
    conditions = ["namespace = :namespace", "job_id = :job_id", *page_request.conditions]
    values = {**page_request.values, "namespace": namespace, "job_id": job_id}
    direction, sign = (" DESC", "<") if page_request.reverse else ("", ">")
    if page_request.start is not None:
        values["first"], values["second"] = page_request.start
        conditions.append(
            f"create_index {sign}= :first AND (create_index {sign} :first OR id >= :second)"
        )
    where = " AND ".join(conditions)
    return db.each(f"{select} WHERE {where} ORDER BY create_index{direction}, id", values)
