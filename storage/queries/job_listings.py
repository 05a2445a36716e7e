"""Jobs as lists and counts show them: lines, changes, children."""

from collections.abc import Iterator
from typing import NamedTuple

from storage.queries.pages import Wish
from storage.readers import Snapshot, selection

# A job's counts are joined by SQLite, in one call: a chain of || takes half as long again. Counts of
# children change with each step of each child: they are columns, not text.
_COUNTS_FORM = (
    '%s,"Children":{"Pending":%d,"Running":%d,"Dead":%d},"CreateIndex":%d,"ModifyIndex":%d}'
)
_COUNTS = """
    substr(summary, 1, length(summary) - 1), children_pending, children_running, children_dead,
    create_index, summary_index
"""
_SUMMARY = f"""
    SELECT printf('{_COUNTS_FORM}', {_COUNTS}) AS summary, summary_index
      FROM jobs
     WHERE namespace = :namespace AND id = :id
"""


def summary_wire(db: Snapshot, namespace: str, job_id: str) -> tuple[bytes, int] | None:
    """Return a job's counts as JSON, and the index of their last change."""
    row = db.one(_SUMMARY, {"namespace": namespace, "id": job_id})
    return (row["summary"].encode(), row["summary_index"]) if row else None


_STUBS = f"""
    SELECT namespace, id,
           CAST(printf('%s,"Status":"%s","ModifyIndex":%d,"JobSummary":{_COUNTS_FORM}%s}}',
                       listing, status, modify_index, {_COUNTS}, :meta) AS BLOB) AS stub
      FROM jobs
"""
_STUB_FILTERS = {
    "namespace": "namespace = :namespace",
    "prefix": "id >= :prefix AND id < :prefix || char(1114111)",
}
_STUBS_WITH_META = _STUBS.replace(
    ":meta",
    """',"Meta":' || (SELECT coalesce(v.document -> '$.Meta', 'null')
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
    "Name": "(listing || '}') ->> '$.Name'",
}


class Stub(NamedTuple):
    """A job in a listing."""

    namespace: str
    id: str
    line: bytes


def stubs(db: Snapshot, wish: Wish, *, with_meta: bool = False) -> Iterator[Stub]:
    """Yield the listing lines of jobs in the order of namespace and id, or in the opposite one."""
    conditions, values = list(wish.conditions), {**wish.values, "meta": ""}
    if wish.namespace != "*":
        conditions.append("namespace = :namespace")
        values["namespace"] = wish.namespace
    if wish.prefix:
        conditions.append("id >= :prefix AND id < :prefix || char(1114111)")
        values["prefix"] = wish.prefix
    if wish.start is not None:
        values["first"], values["second"] = wish.start
        order = "<" if wish.reverse else ">"
        # Of a comparison of both columns SQLite uses nothing beside `namespace = :namespace`.
        within = wish.start[0] == wish.namespace
        columns, start = ("id", ":second") if within else ("(namespace, id)", "(:first, :second)")
        conditions.append(f"{columns} {order}= {start}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    way = " DESC" if wish.reverse else ""
    select = _STUBS_WITH_META if with_meta else _STUBS
    for row in db.each(f"{select}{where} ORDER BY namespace{way}, id{way}", values):
        yield Stub(row["namespace"], row["id"], row["stub"])


class Change(NamedTuple):
    """A job and when it changed last."""

    modify_index: int
    namespace: str
    id: str


_BY_CHANGE = "SELECT modify_index, namespace, id FROM jobs"
_CHANGE_FILTERS = {
    **_STUB_FILTERS,
    "kind": "type = :kind",
    "status": "status = :status",
    "parent_id": "parent_id IS ''",
}


def by_change(
    db: Snapshot,
    namespace: str,
    prefix: str = "",
    *,
    kind: str = "",
    status: str = "",
    children: bool = False,
) -> list[Change]:
    """Return jobs, oldest change first, or only those without parent.

    Those whose id begins with `prefix`, of one kind and one status if these are given.
    """
    values = {"namespace": namespace, "prefix": prefix, "kind": kind, "status": status}
    given = {name: value for name, value in values.items() if value and value != "*"}
    chosen = given if children else {**given, "parent_id": ""}
    sql = selection(_BY_CHANGE, _CHANGE_FILTERS, chosen, "modify_index, namespace, id")
    return [Change(*row) for row in db.all(sql, given)]


_CHILD_STATUSES = """
    SELECT status FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> ''
  ORDER BY create_index
"""


def child_statuses(db: Snapshot, namespace: str, job_id: str) -> list[str]:
    """Return the status of every child of a job, oldest first."""
    rows = db.all(_CHILD_STATUSES, {"namespace": namespace, "id": job_id})
    return [row["status"] for row in rows]


_ON_EVERY_NODE = """
    SELECT namespace, id FROM jobs
     WHERE type IN ('system', 'sysbatch') AND stop = 0 AND launches_children = 0
       AND held = 0
"""


def on_every_node(db: Snapshot) -> list[tuple[str, str]]:
    """Return namespace and id of the jobs that have, or may begin, work on every node."""
    return [(row["namespace"], row["id"]) for row in db.all(_ON_EVERY_NODE)]
