"""Counts of task groups: status, changes, and scaling policies with their limits."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from daemon.api.cluster.operator import check_accepts
from daemon.api.jobs import JobRegisterResponse, check_right
from daemon.api.paging import Key, Listing, show
from daemon.jobs.scale import ScalingRequest, scale_job
from daemon.jobspec.budgets import Budgets
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import allocations, jobs, scaling
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, ClientStatus
from storage.records.codec import encode
from storage.records.freeze import MAY_OVERRIDE
from storage.records.numbers import parse_integer
from storage.records.scaling import GroupScale, ScaleStatus, ScalingPolicy, ScalingPolicyStub


def status(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the counts of a job's groups (source: Nomad's recorded responses `scale`, `kind-*`)."""
    namespace, job_id = request.namespace, request["job_id"]
    job = jobs.current(db, namespace, job_id)
    if job is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    counted = [
        alloc for alloc in allocations.for_scheduler(db, namespace, job_id) if _counts(alloc)
    ]
    events = scaling.events(db, namespace, job_id)
    body = ScaleStatus(
        job_id=job_id,
        namespace=namespace,
        job_create_index=job.create_index,
        job_modify_index=job.modify_index,
        job_stopped=job.stop,
        task_groups={
            group.name: GroupScale(
                desired=group.count,
                events=events.get(group.name),
                **_active_allocations(
                    [alloc for alloc in counted if alloc.task_group == group.name]
                ),
            )
            for group in job.task_groups or ()
        },
    )
    newest = [event.create_index for group in events.values() for event in group[:1]]
    highest = allocations.highest_index(db, namespace, job_id)
    return reply.read_reply(body, max(job.modify_index, highest, *newest))


def _counts(allocation: Allocation) -> bool:
    is_canary = allocation.health is not None and allocation.health.canary
    return not allocation.terminal and not is_canary


def _active_allocations(allocs: list[Allocation]) -> dict[str, int]:
    health = Counter(alloc.health.healthy for alloc in allocs if alloc.health is not None)
    return {
        "placed": len(allocs),
        "running": sum(alloc.client_status == ClientStatus.RUNNING for alloc in allocs),
        "healthy": health[True],
        "unhealthy": health[False],
    }


async def scale(request: Request) -> HandlerReply:
    """Change the count of a group, or only record a message or an error about its scaling."""
    parts, body = request.parts, await request.decoded(ScalingRequest)
    check_right(request, None, request.namespace, override=body.policy_override)
    check_accepts(request)
    done = await scale_job(
        parts.store,
        request.namespace,
        request["job_id"],
        body,
        policies=parts.policies,
        budgets=Budgets.of(parts.config),
        overrides=request.caller.grant.may(request.namespace, MAY_OVERRIDE),
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    response = JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.job_modify_index,
        warnings=done.warnings,
        index=done.index,
        known_leader=True,
    )
    return HandlerReply(body=response, index=done.index)


def policies(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List scaling policies by job and group, without their limits."""
    query = request.query
    prefix, kind, expression = query.text("prefix"), query.text("type"), query.text("filter")
    matches = compile_filter(expression, ScalingPolicyStub) if expression else None

    def rows(db: ReadSnapshot, start: Key | None, reverse: bool) -> Iterator[scaling.PlacedPolicy]:
        position, _, job_id = str(start[1]).partition(".") if start else ("", "", "")
        first = (str(start[0]), job_id) if start else None
        for placed in scaling.policies(
            db, request.namespace, query.text("job"), first, reverse=reverse
        ):
            number = parse_integer(position) if position.isdecimal() else 0
            is_before = placed.place > number if reverse else placed.place < number
            if first == (placed.namespace, placed.job_id) and is_before:
                continue
            yield placed

    def wanted(_: ReadSnapshot, placed: scaling.PlacedPolicy) -> bool:
        policy = placed.policy
        if not policy.id.startswith(prefix) or kind not in ("", policy.type):
            return False
        if not request.sees(policy.target["Namespace"]):
            return False
        return matches is None or matches(msgspec.to_builtins(_stub(policy)))

    listing = Listing[scaling.PlacedPolicy](
        rows=rows,
        key=lambda placed: (placed.namespace, f"{placed.place}.{placed.job_id}"),
        line=lambda _, placed: encode(_stub(placed.policy)),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, query, db, db.table_index("scaling_policies"))


def _stub(policy: ScalingPolicy) -> ScalingPolicyStub:
    return msgspec.convert(policy, ScalingPolicyStub, from_attributes=True)


def policy(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a scaling policy."""
    for placed in scaling.policies(db):
        scaling_policy = placed.policy
        if scaling_policy.id == request["policy_id"]:
            request.require(scaling_policy.target["Namespace"])
            return reply.read_reply(scaling_policy, scaling_policy.modify_index)
    raise NotFound("policy not found", index=db.table_index("scaling_policies"))
