"""Listings of jobs, by namespace and ID or by last change, and the statuses of child jobs."""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from storage.queries.documents import readable, text_of
from storage.queries.pages import PageRequest, by_namespace, like_part
from storage.read_pool import ReadSnapshot
from storage.records.job import JobType

# SQLite joins the counts in one call: a chain of || takes 50 % longer. Counts of children are
# columns, because each step of each child changes them.
_COUNTS_FORM = (
    '%s,"Children":{"Pending":%d,"Running":%d,"Dead":%d},"CreateIndex":%d,"ModifyIndex":%d}'
)
_COUNTS = """
    substr(summary, 1, length(summary) - 1), children_pending, children_running, children_dead,
    create_index, summary_index
"""
_SUMMARY = f"""
    SELECT namespace, id, printf('{_COUNTS_FORM}', {_COUNTS}) AS summary, summary_index
      FROM jobs
     WHERE namespace = :namespace AND id = :id
"""


def summary_wire(db: ReadSnapshot, namespace: str, job_id: str) -> tuple[bytes, int] | None:
    """Return a job's summary as JSON, and the index of the summary's last change.

    Return None if the job does not exist.
    """
    row = db.one(_SUMMARY, {"namespace": namespace, "id": job_id})
    return (text_of(row, "jobs", "summary"), row["summary_index"]) if row else None


_STUBS = f"""
    SELECT namespace, id,
           CAST(printf('%s,"Status":"%s","ModifyIndex":%d,"JobSummary":{_COUNTS_FORM}%s}}',
                       listing, status, modify_index, {_COUNTS}, :meta) AS BLOB) AS stub
      FROM jobs
"""
_STUBS_WITH_META = _STUBS.replace(
    ":meta",
    """',"Meta":' || (SELECT CASE WHEN json_valid(v.document)
                                    THEN coalesce(v.document -> '$.Meta', 'null') ELSE '?' END
                        FROM job_versions v
                       WHERE v.namespace = jobs.namespace AND v.job_id = jobs.id
                         AND v.version = jobs.version)""",
)


COLUMNS = {
    "ID": "id",
    "Namespace": "+namespace",
    "ParentID": "+parent_id",
    "Type": "+type",
    "Status": "+status",
    "Name": "iif(json_valid(listing || '}'), (listing || '}') ->> '$.Name', NULL)",
}


class JobListingRow(NamedTuple):
    """A job in a listing."""

    namespace: str
    id: str
    line: bytes


def listing_rows(
    db: ReadSnapshot, listing_request: PageRequest, *, with_meta: bool = False
) -> Iterator[JobListingRow]:
    """Yield the listing lines of jobs by namespace and ID, ascending or descending."""
    for page_request in by_namespace(db, listing_request):
        yield from _stubs(db, page_request, with_meta=with_meta)


def _stubs(
    db: ReadSnapshot, page_request: PageRequest, *, with_meta: bool
) -> Iterator[JobListingRow]:
    restriction, order_by, values = _in_order(page_request, page_request.conditions)
    select = _STUBS_WITH_META if with_meta else _STUBS
    rows = db.each(f"{select}{restriction} {order_by}", {**values, "meta": ""})
    return readable(db, rows, _row)


def _row(row: sqlite3.Row) -> JobListingRow:
    return JobListingRow(row["namespace"], row["id"], text_of(row, "jobs", "stub"))


def _in_order(
    page_request: PageRequest, restrictions: Iterable[str]
) -> tuple[str, str, dict[str, object]]:
    """Return the WHERE clause, the ORDER BY clause and the parameters for a page of jobs.

    The jobs are sorted by namespace and ID.
    """
    conditions, values, least = list(restrictions), dict(page_request.values), page_request.prefix
    if page_request.namespace != "*":
        conditions.append("namespace = :namespace")
        values["namespace"] = page_request.namespace
    if page_request.start is not None:
        values["first"], values["second"] = page_request.start
        sign = "<" if page_request.reverse else ">"
        # From a comparison of both columns, SQLite would use only `namespace = :namespace` in the
        # index.
        within = page_request.start[0] == page_request.namespace
        if within and not page_request.reverse:
            least = max(
                least, str(page_request.start[1])
            )  # with two lower limits, SQLite may use the weaker one
        elif within:
            conditions.append("id <= :second")
        else:
            conditions.append(f"(namespace, id) {sign}= (:first, :second)")
    if least:
        conditions.append("id >= :least")
        values["least"] = least
    if page_request.prefix:
        conditions.append("id < :prefix || char(1114111)")
        values["prefix"] = page_request.prefix
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    return where, f"ORDER BY namespace{direction}, id{direction}", values


class JobChange(NamedTuple):
    """A job and the index of its last change."""

    modify_index: int
    namespace: str
    id: str


_CHANGES = "SELECT modify_index, namespace, id FROM jobs INDEXED BY"
_CONDITIONS = {
    # like() ignores the case of ASCII letters only, so IDs with other characters are kept here. If
    # the pattern were a bare parameter, SQLite would prepare the statement again for each value.
    "part": "(like(:part || '', id, '!') OR length(CAST(id AS BLOB)) <> length(id))",
    "kind": "type = :kind",
    "status": "status = :status",
}
# This is the condition of the index jobs_failed and similar indexes. A run of a workflow may also
# fail without a failed task. Nomad gives the status `complete` to an allocation that its
# `max_run_duration` ended.
_FAILED = """stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
               OR has_failed_allocation = 1)"""
_FEW = 4  # characters; longer prefixes match few enough rows to sort them


def by_change(
    db: ReadSnapshot,
    page_request: PageRequest,
    *,
    kind: str = "",
    status: str = "",
    children: bool = False,
    failed: bool = False,
    part: str = "",
) -> Iterator[JobChange]:
    """Yield jobs in the order of their last change. Without `children`, child jobs are omitted.

    `kind` and `status` select jobs by type and status. `failed` selects jobs that may have failed;
    an index finds them among many ended child jobs. `part` omits most jobs whose ID does not
    contain this text, ignoring case; the caller must check the remaining jobs. The pagination key
    has two parts: the index of the last change, and the namespace and ID joined by a dot.
    """
    values = {**page_request.values, "kind": kind, "status": status}
    values["part"] = like_part(part) if part.isascii() and part else ""
    conditions = [text for name, text in _CONDITIONS.items() if values[name]]
    index = "jobs_changed" if children else "jobs_by_change"
    if not children:
        conditions.append("parent_id IS ''")
    if page_request.namespace != "*":
        conditions.append("namespace = :namespace")
        values["namespace"] = page_request.namespace
    if page_request.prefix:
        conditions.append("id >= :prefix AND id < :prefix || char(1114111)")
        values["prefix"] = page_request.prefix
    if page_request.prefix and page_request.namespace != "*" and len(page_request.prefix) >= _FEW:
        index = "sqlite_autoindex_jobs_1"  # few rows of a namespace are found by prefix and sorted
    sign = "<" if page_request.reverse else ">"
    if page_request.start is not None:
        values["first"], values["second"] = page_request.start
        conditions.append(
            f"modify_index {sign}= :first"
            f" AND (modify_index {sign} :first OR namespace || '.' || id {sign}= :second)"
        )
    statement = _where(index, conditions)
    if failed:  # the index has the order of changes within a type; SQLite merges the types
        index = "jobs_failed" if children else "jobs_failed_top_level"
        types = [""] if kind else [f"type = '{job_type}'" for job_type in JobType]
        statement = " UNION ALL ".join(
            _where(index, [_FAILED, type_condition, *conditions]) for type_condition in types
        )
    direction = " DESC" if page_request.reverse else ""
    order_by = f"ORDER BY modify_index{direction}, namespace{direction}, id{direction}"
    for row in db.each(f"{statement} {order_by}", values):
        yield JobChange(*row)


def _where(index: str, conditions: Iterable[str]) -> str:
    """Return an SQL statement that uses an index to read the jobs that meet all conditions."""
    texts = " AND ".join(filter(None, conditions))
    return f"{_CHANGES} {index}{f' WHERE {texts}' if texts else ''}"


def by_name(
    db: ReadSnapshot,
    listing_request: PageRequest,
    *,
    kind: str = "",
    status: str = "",
    children: bool = False,
    failed: bool = False,
    part: str = "",
) -> Iterator[JobChange]:
    """Yield jobs by namespace and ID. The parameters are those of `by_change`."""
    values = {**listing_request.values, "kind": kind, "status": status}
    values["part"] = like_part(part) if part.isascii() and part else ""
    conditions = [text for name, text in _CONDITIONS.items() if values[name]]
    index = "sqlite_autoindex_jobs_1"
    if not children:
        conditions.append("parent_id IS ''")
        index = "jobs_by_name"
    if failed:
        conditions.append(_FAILED)
        index = "jobs_failed_by_name" if children else "jobs_failed_top_level_by_name"
    for page_request in by_namespace(db, listing_request):
        where, order_by, page_values = _in_order(page_request, conditions)
        for row in db.each(f"{_CHANGES} {index}{where} {order_by}", {**values, **page_values}):
            yield JobChange(*row)


_CHILD_STATUSES = """
    SELECT status FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> ''
  ORDER BY create_index
"""


def child_statuses(db: ReadSnapshot, namespace: str, job_id: str) -> list[str]:
    """Return the status of every child of a job, oldest first."""
    rows = db.all(_CHILD_STATUSES, {"namespace": namespace, "id": job_id})
    return [row["status"] for row in rows]


_ON_EVERY_NODE = """
    SELECT namespace, id FROM jobs
     WHERE type IN ('system', 'sysbatch') AND stop = 0 AND launches_children = 0
       AND held = 0
"""


def on_every_node(db: ReadSnapshot) -> list[tuple[str, str]]:
    """Return the namespace and ID of system and sysbatch jobs that may have or get allocations."""
    return [(row["namespace"], row["id"]) for row in db.all(_ON_EVERY_NODE)]
