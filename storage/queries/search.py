"""Search: IDs by prefix, names by substring."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from storage.queries.documents import decode_row, readable
from storage.queries.pages import like_part
from storage.read_pool import ReadSnapshot
from storage.records.search import JobNames

_BEGINNING = {
    "jobs": "SELECT DISTINCT id FROM jobs",
    "allocations": "SELECT id FROM allocations",
    "evaluations": "SELECT id FROM evaluations",
    "deployments": "SELECT id FROM deployments",
}
_WITHIN = """
 WHERE {} IN (SELECT value FROM json_each(:namespaces))
   AND id >= :prefix AND id < :prefix || char(1114111)
ORDER BY id
LIMIT :most
"""
_BY_NAMESPACE, _BY_ID = _WITHIN.format("namespace"), _WITHIN.format("+namespace")
_ANOTHER = """
    SELECT 1 FROM namespaces
     WHERE name >= '' AND name NOT IN (SELECT value FROM json_each(:namespaces))
     LIMIT 1
"""
_TELLING = 4  # digits of a prefix that selects few rows, even in a namespace with nearly all IDs
# The index has all columns of the query. For a row that does not match, like() takes a quarter of
# the time of instr(). If the pattern were a bare parameter, SQLite would prepare the statement
# again for each value.
_ALLOCATION_NAMES = """
    SELECT namespace, id, name FROM allocations INDEXED BY allocations_of_job_in_order
     WHERE namespace IN (SELECT value FROM json_each(:namespaces))
       AND like(:part || '', name, '!') AND instr(lower(name), :text) > 0
  ORDER BY instr(lower(name), :text), length(name), name, id
     LIMIT :most
"""
_JOBS = """
    SELECT v.namespace, v.job_id, v.version, v.document
      FROM jobs j
      JOIN job_versions v
        ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
     WHERE j.namespace IN (SELECT value FROM json_each(:namespaces))
       AND like(:part || '', v.document, '!')
"""
# `lower()` can change the length of other letters, and `like` does not ignore their case.
_PLAIN = re.compile(r"[ -~]+")


def ids_with_prefix(
    db: ReadSnapshot, table: str, namespaces: Sequence[str], prefix: str, most: int
) -> list[str]:
    """Return up to `most` IDs of a table that begin with a prefix, sorted."""
    values = {"namespaces": _list(namespaces), "prefix": prefix, "most": most}
    # If few rows of a namespace have the prefix, the index on IDs finds them. For all namespaces,
    # this index also has the right order.
    by_id = table != "jobs" and (len(prefix) >= _TELLING or db.one(_ANOTHER, values) is None)
    rows = db.all(_BEGINNING[table] + (_BY_ID if by_id else _BY_NAMESPACE), values)
    return [row["id"] for row in rows]


def allocation_names(
    db: ReadSnapshot, namespaces: Sequence[str], text: str, most: int
) -> list[tuple[str, str, str]]:
    """Return up to `most` allocations whose name, in lower case, contains `text`.

    Names with an earlier match come first, then shorter names. Each result is a namespace, an ID
    and a name.
    """
    values = {
        "namespaces": _list(namespaces),
        "text": text,
        "part": like_part(text) or "%",
        "most": most,
    }
    rows = db.all(_ALLOCATION_NAMES, values)
    return [(row["namespace"], row["id"], row["name"]) for row in rows]


def job_names(db: ReadSnapshot, namespaces: Sequence[str], text: str = "") -> Iterator[JobNames]:
    """Yield the names of current jobs, and of their groups, tasks and services.

    Only jobs whose definition contains `text`, in any case, are decoded: decoding takes ten times
    as long as the search of the stored text. Jobs that cannot be decoded are omitted.
    """
    plain = max(_PLAIN.findall(text), key=len, default="")
    stored = msgspec.json.encode(plain).decode()[1:-1]  # as inside a string of the document
    rows = db.each(_JOBS, {"namespaces": _list(namespaces), "part": like_part(stored) or "%"})
    return readable(db, rows, lambda row: decode_row(row, JobNames, "job_versions"))


def _list(texts: Sequence[str]) -> str:
    return msgspec.json.encode(texts).decode()
