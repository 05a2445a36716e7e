"""Files of ended tasks that `steward_keep` retains. `payload_files` stores their contents."""

import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial

from storage.queries import runs
from storage.queries.pages import LAST
from storage.read_pool import ReadSnapshot
from storage.records.kept_file import KeptFile
from storage.writer import Transaction

_REMOVE = "DELETE FROM kept_files WHERE alloc_id = :alloc_id AND task = :task"
_PUT = """
    INSERT INTO kept_files (alloc_id, task, path, namespace, digest)
    SELECT id, :task, :path, namespace, :digest FROM allocations WHERE id = :alloc_id
"""
_SELECT = """
    SELECT k.task, k.path, k.digest, f.size
      FROM kept_files AS k
      JOIN payload_files AS f ON f.namespace = k.namespace AND f.digest = k.digest
"""
_PAGE = f"""{_SELECT} WHERE k.alloc_id = :alloc_id AND (k.task, k.path) >= (:task, :path)
  ORDER BY k.task, k.path
"""
_PAGE_BACK = f"""{_SELECT} WHERE k.alloc_id = :alloc_id AND (k.task, k.path) <= (:task, :path)
  ORDER BY k.task DESC, k.path DESC
"""
_TASKS = "SELECT task FROM kept_files WHERE alloc_id = :alloc_id AND path = :path ORDER BY task"
_FIND = f"{_SELECT} WHERE k.alloc_id = :alloc_id AND k.task = :task AND k.path = :path"
# The newest allocation with a name, in a version of the job.
_NEWEST = """
    SELECT id FROM allocations
     WHERE namespace = :namespace AND job_id = :job_id AND task_group = :group
       AND job_version = :version AND name = :name
  ORDER BY create_index DESC, id
     LIMIT 1
"""
_BY_PATH = "SELECT digest FROM kept_files WHERE alloc_id = :alloc_id AND path = :path ORDER BY task"


def replace(tx: Transaction, alloc_id: str, task: str, files: Mapping[str, str]) -> None:
    """Replace the kept files of a task; `files` maps paths to digests.

    Nothing is stored for a purged allocation.
    """
    tx.execute(_REMOVE, {"alloc_id": alloc_id, "task": task})
    for path, digest in files.items():
        tx.execute(_PUT, {"alloc_id": alloc_id, "task": task, "path": path, "digest": digest})


def page(
    db: ReadSnapshot, alloc_id: str, start: tuple[str, str] | None = None, *, reverse: bool = False
) -> Iterator[KeptFile]:
    """Yield the files of an allocation by task and path.

    `start` is the task and the path of the first file.
    """
    task, path = start or ((LAST, LAST) if reverse else ("", ""))
    values = {"alloc_id": alloc_id, "task": task, "path": path}
    for row in db.each(_PAGE_BACK if reverse else _PAGE, values):
        yield _file(row)


def tasks_with(db: ReadSnapshot, alloc_id: str, path: str) -> list[str]:
    """Return the names of the tasks of an allocation that left a file at a path."""
    return [row["task"] for row in db.all(_TASKS, {"alloc_id": alloc_id, "path": path})]


def find(db: ReadSnapshot, alloc_id: str, task: str, path: str) -> KeptFile | None:
    """Return a file, or None."""
    row = db.one(_FIND, {"alloc_id": alloc_id, "task": task, "path": path})
    return _file(row) if row else None


def _file(row: sqlite3.Row) -> KeptFile:
    return KeptFile(task=row["task"], path=row["path"], size=row["size"], digest=row["digest"])


def digest_in_run(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    version: int,
    *,
    group: str,
    element: int,
    path: str,
) -> str:
    """Return the digest of a file that a step left in the run of a version; empty if it left none.

    If the run left out the step, the file comes from the run `outputs_of`. If the run took over the
    step from the previous run, the file comes from the previous run.
    """
    find = partial(digest_of, db, namespace, job_id, group=group, element=element, path=path)
    digest = find(version)
    run = runs.of_version(db, namespace, job_id, version)
    while not digest and run is not None:
        row = runs.step(db, run, group)
        if row is None:
            break
        if row.is_left_out:
            number = run.outputs_of
        elif row.outcome is not None and row.since < run.began:  # taken over from a former version
            number = run.number - 1
        else:
            break
        run = runs.find(db, namespace, job_id, number)
        if run is not None:
            digest = find(run.version)
    return digest


def digest_of(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    version: int,
    *,
    group: str,
    element: int,
    path: str,
) -> str:
    """Return the digest of a file that the newest allocation of a group's element left.

    The result is empty if the allocation left no file at this path. If several of its tasks left
    one, the result is the digest for the first task by name.
    """
    values = {
        "namespace": namespace,
        "job_id": job_id,
        "version": version,
        "group": group,
        "name": f"{job_id}.{group}[{element}]",
    }
    newest = db.one(_NEWEST, values)
    row = db.one(_BY_PATH, {"alloc_id": newest["id"], "path": path}) if newest else None
    return str(row["digest"]) if row else ""
