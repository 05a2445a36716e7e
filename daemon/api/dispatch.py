"""Launching child jobs: by dispatch, by schedule, or manually."""

from collections.abc import Iterator
from functools import partial

import msgspec

from daemon.api.cluster.operator import check_accepts
from daemon.api.paging import Key, Listing, show
from daemon.jobs.dispatch import (
    DispatchRequestData,
    JobDispatchRequest,
    dispatch_job,
    read_request,
)
from daemon.jobs.periodic import (
    decided_until,
    holding_freezes,
    load_periodic_job,
    next_launches,
    openings_of,
    upcoming,
    zone_of,
)
from daemon.jobs.periodic import force as force_launch
from daemon.jobs.periodic import pause as pause_clock
from daemon.jobspec import cron
from daemon.jobspec.budgets import Budgets
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import jobs, notifications, periodic
from storage.queries.periodic import DueLaunch
from storage.read_pool import ReadSnapshot
from storage.records import notification
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.notification import Notification
from storage.records.periodic import PeriodicSchedule, ScheduledLaunch, Slot
from storage.records.times import rfc3339

_LONG_PAYLOAD = 64 * 1024  # characters of base64 that the event loop decodes in 1 ms
_SUFFIX = 8  # characters that make a child's ID unique within its second


class JobDispatchResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a dispatch."""

    dispatched_job_id: str
    eval_id: str
    eval_create_index: int
    job_create_index: int
    index: int


class PeriodicForceResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a forced launch."""

    eval_id: str
    eval_create_index: int
    index: int


class PeriodicPauseResponse(Record, frozen=True, kw_only=True):
    """The response after a periodic job was paused or resumed."""

    index: int


async def dispatch(request: Request) -> HandlerReply:
    """Dispatch a parameterized job, with the payload and meta of the request."""
    body = await request.decoded(JobDispatchRequest)
    read = partial(read_request, body, request["job_id"], _token(request))
    if len(body.payload) <= _LONG_PAYLOAD:
        return await _dispatch(request, read())
    # A payload above the limit is decoded too, because the error states its decoded size.
    return await _dispatch(request, await request.parts.admission.run(request.client, read))


async def dispatch_payload(request: Request) -> HandlerReply:
    """Dispatch a parameterized job, with the request's body as payload."""
    dispatch_request_data = DispatchRequestData(
        payload=request.body, meta={}, token=_token(request)
    )
    return await _dispatch(request, dispatch_request_data)


def _token(request: Request) -> str:
    query = request.query
    return query.text("idempotency_token") or query.text("IdempotencyToken")


async def _dispatch(request: Request, dispatch_request_data: DispatchRequestData) -> HandlerReply:
    parts = request.parts
    check_accepts(request)
    done = await dispatch_job(
        parts.store,
        request.namespace,
        request["job_id"],
        dispatch_request_data,
        budgets=Budgets.of(parts.config),
        now=parts.clock.now(),
        ids=parts.ids,
        suffix=next(parts.ids)[:_SUFFIX],
    )
    response = JobDispatchResponse(
        dispatched_job_id=done.job_id,
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_create_index=done.create_index,
        index=done.index,
    )
    return HandlerReply(body=response, index=done.index)


async def force_periodic(request: Request) -> HandlerReply:
    """Launch a child of a periodic job now; the body is ignored."""
    parts = request.parts
    done = await force_launch(
        parts.store,
        request.namespace,
        request["job_id"],
        budgets=Budgets.of(parts.config),
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    body = PeriodicForceResponse(
        eval_id=done.eval_id, eval_create_index=done.index, index=done.index
    )
    return HandlerReply(body=body, index=done.index)


def periodic_schedule(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the next launches of a periodic job, and whether it is paused."""
    job, due = load_periodic_job(db, request.namespace, request["job_id"])
    after = decided_until(db, job, request.parts.clock.now())
    schedule = PeriodicSchedule(
        job_id=job.id,
        namespace=job.namespace,
        paused=due is not None and due.paused,
        next_launches=[
            rfc3339(launch, zone_of(job))
            for launch in next_launches(job, after, openings_of(db, job), holding_freezes(db, job))
        ],
    )
    return reply.read_reply(schedule, max(job.modify_index, db.table_index("periodic_slots")))


def upcoming_launches(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the next launches of periodic jobs, soonest first."""
    now = request.parts.clock.now()

    def rows(db: ReadSnapshot, start: Key | None, reverse: bool) -> Iterator[DueLaunch]:
        first = None
        if start is not None:
            namespace, _, job_id = str(start[1]).partition(".")
            first = (int(start[0]), namespace, job_id)
        return upcoming(db, request.namespace, now, first, reverse=reverse)

    listing = Listing[DueLaunch](
        rows=rows,
        key=lambda item: (item.launch or 0, f"{item.namespace}.{item.job_id}"),
        line=_launch,
        wanted=lambda _, item: request.sees(item.namespace),
    )
    index = max(db.table_index("periodic_jobs"), db.table_index("freezes"), 1)
    return show(listing, request.query, db, index)


def _launch(db: ReadSnapshot, due_launch: DueLaunch) -> bytes:
    return encode(
        ScheduledLaunch(
            job_id=due_launch.job_id,
            namespace=due_launch.namespace,
            paused=due_launch.paused,
            next_launch=rfc3339(
                due_launch.launch or 0, cron.zone(periodic.time_zone(db, due_launch))
            ),
        )
    )


async def pause_periodic(request: Request) -> HandlerReply:
    """Pause a periodic job: skip its slots until it is resumed; the body is ignored."""
    return await _pause(request, paused=True)


async def resume_periodic(request: Request) -> HandlerReply:
    """Resume a periodic job; the body is ignored."""
    return await _pause(request, paused=False)


async def _pause(request: Request, *, paused: bool) -> HandlerReply:
    store = request.parts.store
    index = await pause_clock(store, request.namespace, request["job_id"], paused=paused)
    return HandlerReply(body=PeriodicPauseResponse(index=index), index=index)


def list_notifications(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the notifications about a job and its children, sent and queued, newest first."""
    namespace, job_id = _known(request, db)
    listing = Listing[Notification](
        rows=lambda db, start, reverse: notifications.of_job(
            db, namespace, job_id, start, reverse=reverse
        ),
        key=lambda notification_row: (notification_row.id,),
        line=lambda _, attempt: encode(
            msgspec.structs.replace(attempt, webhook=notification.shown_webhook(attempt.webhook))
        ),
        newest_first=True,
    )
    return show(listing, request.query, db, db.table_index("notifications"))


def _known(request: Request, db: ReadSnapshot) -> tuple[str, str]:
    """Return namespace and ID of the job in the path. Raises `NotFound`."""
    namespace, job_id = request.namespace, request["job_id"]
    if jobs.current_wire(db, namespace, job_id) is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    return namespace, job_id


def list_slots(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the outcomes of the slots of a periodic job, newest first."""
    namespace, job_id = _known(request, db)
    listing = Listing[Slot](
        rows=lambda db, start, reverse: periodic.slots(
            db, namespace, job_id, start, reverse=reverse
        ),
        key=lambda slot: (slot.slot,),
        line=lambda _, slot: encode(slot),
        newest_first=True,
    )
    newest = next(periodic.slots(db, namespace, job_id), None)
    index = newest.create_index if newest else db.table_index("periodic_slots")
    return show(listing, request.query, db, index)
