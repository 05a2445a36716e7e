"""New children of one job: their common parts are encoded once.

A new child has no earlier version, no allocations and no summary, so none of these are looked up.
The rows are the same as those of `jobs.append_version` and `job_status.refresh_summary`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from storage.errors import Refused
from storage.queries import events, job_status
from storage.queries.jobs import ADD_STATE, ADD_VERSION, listing_of
from storage.records import notification
from storage.records.codec import encode, job_builtins
from storage.records.job import GroupSummary, Job, JobCounts, JobStatus, JobType
from storage.writer import Transaction

_PREFIX = "steward_"  # of the keys in meta that are settings

_ADD = """
    INSERT INTO jobs (namespace, id, version, type, parent_id, dispatch_token, launches_children,
                      stop, has_scaling, status, listing, queued, children_pending,
                      children_running, children_dead, summary, summary_index, create_index,
                      modify_index, job_modify_index, held, notify, versions_bytes)
    VALUES (:namespace, :id, 0, :type, :parent_id, :dispatch_token, 0, :stop, 0, 'pending',
            :listing, :queued, 0, 0, 0, :summary, :index, :index, :index, :index, :held, :notify,
            :bytes)
    ON CONFLICT (namespace, id) DO NOTHING
"""


class NewChild(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a child that differ from those of other children of its job."""

    id: str
    meta: Mapping[str, str] | None
    payload: str | None  # base64
    priority: int
    token: str = ""  # idempotency token of the dispatch


class _CommonParts(msgspec.Struct, frozen=True, kw_only=True):
    """The encoded parts that all children of a job share.

    `pattern` is a child without its submit time and modify indexes. It contains the job's
    `create_index`, so it is different after each registration.
    """

    pattern: Job
    document: dict[str, Any]
    listing: dict[str, Any]
    counts: dict[str, Any]
    queued: str
    notify: str


class _LastPatterns:
    """The common parts of the children that were added last.

    Most dispatches are of the same few jobs. Encoding the parts takes longer than inserting a
    child.
    """

    def __init__(self) -> None:
        self._newest: tuple[_CommonParts, ...] = ()

    def of(self, pattern: Job) -> _CommonParts:
        """Return the encoded common parts for this pattern, from the cache if possible."""
        pattern = msgspec.structs.replace(
            pattern, submit_time=0, modify_index=0, job_modify_index=0
        )
        for recent in self._newest:
            if recent.pattern == pattern:
                return recent
        parts = _encoded(pattern)
        if sum(len(value) for value in parts.document.values()) <= _LONGEST:
            self._newest = (parts, *self._newest)[:_KEPT]
        return parts


_KEPT, _LONGEST = 4, 64 * 1024  # patterns, and bytes of their definitions
_COMMON = _LastPatterns()


def _encoded(pattern: Job) -> _CommonParts:
    groups = [group.name for group in pattern.task_groups or ()]
    counts = JobCounts(
        job_id="", namespace=pattern.namespace, summary=dict.fromkeys(groups, GroupSummary())
    )
    return _CommonParts(
        pattern=pattern,
        document=_encoded_fields(job_builtins(pattern)),
        listing=_encoded_fields(msgspec.to_builtins(listing_of(pattern))),
        counts=_encoded_fields(msgspec.to_builtins(counts)),
        queued=encode(dict.fromkeys(groups, 0)).decode(),
        notify=notification.encoded(notification.notify_settings(pattern.meta)),
    )


class ChildRows:
    """The rows of new children within one transaction. Call `close` after the last child."""

    def __init__(self, tx: Transaction, pattern: Job) -> None:
        """`pattern` is any child of the job. Each `NewChild` replaces some of its values."""
        self._tx, self._namespace, self._parent_id = tx, pattern.namespace, pattern.parent_id
        common = _COMMON.of(pattern)
        self._document, self._counts, self._notify = common.document, common.counts, common.notify
        indexes = {"CreateIndex": tx.index, "JobModifyIndex": tx.index}
        self._listing = {**common.listing, **indexes, "SubmitTime": pattern.submit_time}
        self._same = {
            "namespace": pattern.namespace,
            "version": 0,
            "type": pattern.type,
            "parent_id": pattern.parent_id,
            "stop": pattern.stop,
            "stable": pattern.stable,
            "queued": common.queued,
            "submit_time": pattern.submit_time,
            "index": tx.index,
        }
        self._number = 0

    @staticmethod
    def fit(parent: Job) -> bool:
        """Return whether the children of a job are simple enough for this module."""
        return parent.periodic is None and parent.type != JobType.SYSTEM

    def document(self, child: NewChild) -> bytes:
        """Return the definition of a child for storage."""
        values = {
            "ID": child.id,
            "Name": child.id,
            "Payload": child.payload,
            "Meta": child.meta,
            "Priority": child.priority,
            "DispatchIdempotencyToken": child.token,
        }
        return encode({**self._document, **values})

    def add(self, child: NewChild, document: bytes, *, is_held: bool) -> None:
        """Insert a child with its definition. Raises `Refused` if a job with the same ID exists."""
        tx = self._tx
        listed = {"ID": child.id, "Name": child.id, "Priority": child.priority}
        values = {
            **self._same,
            "id": child.id,
            "dispatch_token": child.token,
            "listing": encode({**self._listing, **listed}).decode().removesuffix("}"),
            "summary": encode({**self._counts, "JobID": child.id}).decode(),
            "document": document.decode(),
            "bytes": len(document),
            "held": is_held,
            "person": self._tx.person,
            "notify": self._notify_of(child.meta or {}),
        }
        if not tx.execute(_ADD, values):
            raise Refused(f'there is already a job with the ID "{child.id}": dispatch again')
        tx.execute(ADD_VERSION, values)
        tx.execute(ADD_STATE, values)
        events.add(
            tx,
            "Job",
            "JobRegistered",
            namespace=self._namespace,
            key=child.id,
            payload='{"Version":0}',
        )
        tx.publish(
            job_status.topic(self._namespace, child.id),
            job_status.summary_topic(self._namespace, child.id),
        )
        self._number += 1

    def _notify_of(self, meta: Mapping[str, str]) -> str:
        if not self._notify and not any(name.startswith(_PREFIX) for name in meta):
            return ""
        return notification.encoded(notification.notify_settings(meta))

    def close(self) -> None:
        """Add the new children to the counts of their parent."""
        if self._number:
            self._tx.touch("jobs")
            self._tx.touch("job_versions")
            self._tx.touch("summaries")
            job_status.count_child(
                *(self._tx, self._namespace, self._parent_id, None, JobStatus.PENDING),
                number=self._number,
            )


def _encoded_fields(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `document` in which each value is encoded as JSON."""
    return {name: msgspec.Raw(encode(value)) for name, value in document.items()}
