"""What each metric means: for the help that Prometheus shows, and for the reference. Pure."""

from collections.abc import Mapping

_STATES = {
    "queued": "are wanted and not placed",
    "starting": "are placed and do not run yet",
    "running": "run",
    "complete": "have ended well",
    "failed": "have failed",
    "lost": "were lost with their node",
    "unknown": "are on a node that is not heard of",
}
_KINDS = ("service", "batch", "system", "sysbatch")

MEANINGS: Mapping[str, str] = {
    **{
        f"nomad.nomad.job_status.{one}": f"Jobs that are {one}."
        for one in ("pending", "running", "dead")
    },
    **{
        f"nomad.nomad.job_summary.{state}": f"Allocations of a group that {words}."
        for state, words in _STATES.items()
    },
    "steward.store.damaged": "1 when a page of the store is corrupt and no write is accepted.",
    "steward.faults": "Units of the daemon's work that failed at their last attempt.",
    "nomad.nomad.blocked_evals.total_blocked": "Evaluations that wait for room.",
    "nomad.nomad.blocked_evals.total_escaped": "Of these, those that any change may help.",
    "nomad.nomad.blocked_evals.total_quota_limit": "Always 0: there are no quotas.",
    "nomad.nomad.broker.total_ready": "Evaluations that the scheduler may look at now.",
    "nomad.nomad.broker.total_waiting": "Evaluations whose time has not come.",
    **{
        f"nomad.nomad.broker.{name}": "Always 0: the one worker leaves nothing in between."
        for name in (
            "total_unacked",
            "total_pending",
            "total_cancelable",
            *(f"{kind}_unacked" for kind in _KINDS),
        )
    },
    **{
        f"nomad.nomad.broker.{kind}_ready": f"Evaluations of {kind} jobs that may be looked at now."
        for kind in _KINDS
    },
    "nomad.client.allocated.cpu": "CPU that allocations hold, in MHz.",
    "nomad.client.allocated.memory": "Memory that allocations hold, in MiB.",
    "nomad.client.allocated.max_memory": "The same: memory is not handed out twice.",
    "nomad.client.allocated.disk": "Disk that allocations hold, in MiB.",
    "nomad.client.unallocated.cpu": "CPU that is left to hand out, in MHz.",
    "nomad.client.unallocated.memory": "Memory that is left to hand out, in MiB.",
    "nomad.client.unallocated.disk": "Disk that is left to hand out, in MiB.",
    "nomad.client.allocations.pending": "Allocations on the node that do not run yet.",
    "nomad.client.allocations.running": "Allocations on the node that run.",
    "nomad.client.allocations.blocked": "Always 0: nothing waits on the node for another to end.",
    "nomad.client.allocations.migrating": "Always 0: nothing comes from another node.",
    "nomad.client.allocations.terminal": "Allocations of the node that have ended and are kept.",
    "nomad.client.allocs.complete": "Allocations that have ended well and are kept.",
    "nomad.client.allocs.failed": "Allocations that have failed and are kept.",
    "nomad.client.allocs.running": "1 for each task that runs.",
    "nomad.client.allocs.restart": "How often the task was restarted.",
    "nomad.client.allocs.oom_killed": "How often the task was killed because memory ran out.",
    "nomad.client.allocs.max_run_duration.configured_seconds": "How long the allocation may run.",
    "nomad.client.allocs.max_run_duration.remaining_seconds": "How much of this is left.",
    "nomad.client.allocs.cpu.allocated": "CPU that the task holds, in MHz.",
    "nomad.client.allocs.cpu.total_percent": "CPU of the task, in percent of one core.",
    "nomad.client.allocs.cpu.system": "Of this, what it spends in the kernel.",
    "nomad.client.allocs.cpu.user": "Of this, what it spends by itself.",
    "nomad.client.allocs.cpu.total_ticks": "CPU of the task, in MHz.",
    "nomad.client.allocs.cpu.throttled_periods": "Periods in which the task was held back.",
    "nomad.client.allocs.cpu.throttled_time": "For how long it was held back, in nanoseconds.",
    "nomad.client.allocs.memory.allocated": "Memory that the task holds, in bytes.",
    "nomad.client.allocs.memory.rss": "Memory of its own that the task has in use, in bytes.",
    "nomad.client.allocs.memory.swap": "Memory of the task that was swapped out, in bytes.",
    "nomad.client.allocs.memory.cache": "Files that are cached for the task, in bytes.",
    "nomad.client.allocs.memory.usage": "Memory of the task with what is cached for it, in bytes.",
    "nomad.client.allocs.memory.max_usage": "The most that this has been, in bytes.",
    "nomad.client.host.memory.total": "Memory of the machine, in bytes.",
    "nomad.client.host.memory.available": "Memory that new programs may have, in bytes.",
    "nomad.client.host.memory.used": "Memory in use, in bytes.",
    "nomad.client.host.memory.free": "Memory that nobody uses, in bytes.",
    "nomad.client.host.cpu.user": "Time of a core in programs, in percent.",
    "nomad.client.host.cpu.system": "Time of a core in the kernel, in percent.",
    "nomad.client.host.cpu.idle": "Time of a core in which it had nothing to do, in percent.",
    "nomad.client.host.cpu.total_percent": "Time of a core in which it was busy, in percent.",
    "nomad.client.host.disk.size": "Size of a file system, in bytes.",
    "nomad.client.host.disk.used": "What of it is in use, in bytes.",
    "nomad.client.host.disk.available": "What of it is left, in bytes.",
    "nomad.client.host.disk.used_percent": "What of it is in use, in percent.",
    "nomad.client.host.disk.inodes_percent": "What of its inodes is in use, in percent.",
    "nomad.client.uptime": "For how long the machine runs, in seconds.",
    "nomad.client.tasks.pending": "Tasks on the node that wait for their start.",
    "nomad.client.tasks.running": "Tasks on the node that run.",
    "nomad.client.tasks.dead": "Tasks that have ended, of allocations on the node that have not.",
    "nomad.nomad.plan.queue_depth": "Always 0: a plan is stored when it is made.",
    "nomad.nomad.heartbeat.active": "Nodes that are ready.",
    "nomad.runtime.alloc_bytes": "Memory of the daemon, in bytes.",
    "nomad.runtime.sys_bytes": "Memory that the daemon has reserved, in bytes.",
    "nomad.runtime.heap_objects": "Blocks of memory that Python has handed out.",
    "nomad.runtime.num_goroutines": "Tasks of Trio: what the peer has goroutines for.",
    "nomad.runtime.total_gc_runs": "How often Python has looked for garbage.",
    "nomad.raft.appliedIndex": "Index of the newest write.",
    "nomad.raft.lastIndex": "The same.",
    "steward.collected": "Rows that were forgotten so far, by kind.",
    "steward.store.bytes": "Size of the store's file, in bytes.",
    "steward.store.free_bytes": "What of it the next rows use before it grows, in bytes.",
    "steward.cloud_token.age_seconds": "Age of the oldest access token of a login method.",
}
