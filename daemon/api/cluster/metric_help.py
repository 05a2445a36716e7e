"""Descriptions of all metrics, for Prometheus and for the reference documentation. No I/O."""

from collections.abc import Mapping

_STATES = {
    "queued": "are desired but not placed",
    "starting": "are placed but not running yet",
    "running": "run",
    "complete": "have succeeded",
    "failed": "have failed",
    "lost": "were lost with their node",
    "unknown": "are on a node that is disconnected",
}
_KINDS = ("service", "batch", "system", "sysbatch")

MEANINGS: Mapping[str, str] = {
    **{
        f"nomad.nomad.job_status.{status}": f"Jobs that are {status}."
        for status in ("pending", "running", "dead")
    },
    **{
        f"nomad.nomad.job_summary.{state}": f"Allocations of a group that {words}."
        for state, words in _STATES.items()
    },
    "steward.job_state": "Jobs in each state, by namespace; runs of a job are not counted."
    " With thousands of jobs the counts may be some seconds old.",
    "steward.store.unreadable_rows": "Known rows of the store that cannot be decoded, by table.",
    "steward.store.damaged": "1 when a page of the store is corrupt and no write is accepted.",
    "steward.launcher.silent_seconds": "Seconds for which the launcher has not answered; 0 if it answers.",
    "steward.faults": "Units of the daemon's work that failed at their last attempt.",
    "steward.freezes": "Freezes that have not ended.",
    "steward.freezes.held": "Jobs that a freeze holds.",
    "nomad.nomad.blocked_evals.total_blocked": "Blocked evaluations, which wait for capacity.",
    "nomad.nomad.blocked_evals.total_escaped": "Blocked evaluations that any change of a node may unblock.",
    "nomad.nomad.blocked_evals.total_quota_limit": "Always 0: there are no quotas.",
    "nomad.nomad.broker.total_ready": "Evaluations that are ready for the scheduler.",
    "nomad.nomad.broker.total_waiting": "Evaluations with a later start time.",
    **{
        f"nomad.nomad.broker.{name}": "Always 0: evaluations go directly to the single worker."
        for name in (
            "total_unacked",
            "total_pending",
            "total_cancelable",
            *(f"{kind}_unacked" for kind in _KINDS),
        )
    },
    **{
        f"nomad.nomad.broker.{kind}_ready": f"Evaluations of {kind} jobs that are ready for the scheduler."
        for kind in _KINDS
    },
    "nomad.client.allocated.cpu": "CPU allocated to tasks, in MHz.",
    "nomad.client.allocated.memory": "Memory allocated to tasks, in MiB.",
    "nomad.client.allocated.max_memory": "Same as the allocated memory: memory is not overcommitted.",
    "nomad.client.allocated.disk": "Disk allocated to tasks, in MiB.",
    "nomad.client.unallocated.cpu": "CPU not allocated, in MHz.",
    "nomad.client.unallocated.memory": "Memory not allocated, in MiB.",
    "nomad.client.unallocated.disk": "Disk not allocated, in MiB.",
    "nomad.client.allocations.pending": "Pending allocations on the node.",
    "nomad.client.allocations.running": "Running allocations on the node.",
    "nomad.client.allocations.blocked": "Always 0: no allocation waits for another one on the node.",
    "nomad.client.allocations.migrating": "Always 0: no allocation migrates from another node.",
    "nomad.client.allocations.terminal": "Terminal allocations of the node that are retained.",
    "nomad.client.allocs.complete": "Complete allocations that are retained.",
    "nomad.client.allocs.failed": "Failed allocations that are retained.",
    "nomad.client.allocs.running": "1 for each running task.",
    "nomad.client.allocs.restart": "Restarts of the task.",
    "nomad.client.allocs.oom_killed": "OOM kills of the task.",
    "nomad.client.allocs.max_run_duration.configured_seconds": "Maximum run time of the allocation, in seconds.",
    "nomad.client.allocs.max_run_duration.remaining_seconds": "Remaining run time of the allocation, in seconds.",
    "nomad.client.allocs.cpu.allocated": "CPU allocated to the task, in MHz.",
    "nomad.client.allocs.cpu.total_percent": "CPU usage of the task, in percent of one core.",
    "nomad.client.allocs.cpu.system": "CPU usage of the task in the kernel, in percent of one core.",
    "nomad.client.allocs.cpu.user": "CPU usage of the task in user mode, in percent of one core.",
    "nomad.client.allocs.cpu.total_ticks": "CPU usage of the task, in MHz.",
    "nomad.client.allocs.cpu.throttled_periods": "Periods in which the CPU limit throttled the task.",
    "nomad.client.allocs.cpu.throttled_time": "Time for which the CPU limit throttled the task, in nanoseconds.",
    "nomad.client.allocs.memory.allocated": "Memory allocated to the task, in bytes.",
    "nomad.client.allocs.memory.rss": "Anonymous memory of the task (RSS), in bytes.",
    "nomad.client.allocs.memory.swap": "Swapped memory of the task, in bytes.",
    "nomad.client.allocs.memory.cache": "Page cache of the task, in bytes.",
    "nomad.client.allocs.memory.usage": "Memory of the task including its page cache, in bytes.",
    "nomad.client.allocs.memory.max_usage": "Maximum of the task's memory including its page cache, in bytes.",
    "nomad.client.host.memory.total": "Memory of the host, in bytes.",
    "nomad.client.host.memory.available": "Memory available to new programs, in bytes.",
    "nomad.client.host.memory.used": "Used memory of the host, in bytes.",
    "nomad.client.host.memory.free": "Free memory of the host, in bytes.",
    "nomad.client.host.cpu.user": "Time of a core in user mode, in percent.",
    "nomad.client.host.cpu.system": "Time of a core in the kernel, in percent.",
    "nomad.client.host.cpu.idle": "Idle time of a core, in percent.",
    "nomad.client.host.cpu.total_percent": "Busy time of a core, in percent.",
    "nomad.client.host.disk.size": "Size of a file system, in bytes.",
    "nomad.client.host.disk.used": "Used space of a file system, in bytes.",
    "nomad.client.host.disk.available": "Free space of a file system, in bytes.",
    "nomad.client.host.disk.used_percent": "Used space of a file system, in percent.",
    "nomad.client.host.disk.inodes_percent": "Used inodes of a file system, in percent.",
    "nomad.client.uptime": "Uptime of the host, in seconds.",
    "nomad.client.tasks.pending": "Pending tasks on the node.",
    "nomad.client.tasks.running": "Running tasks on the node.",
    "nomad.client.tasks.dead": "Ended tasks of allocations that have not ended.",
    "nomad.nomad.plan.queue_depth": "Always 0: plans are applied when they are made.",
    "nomad.nomad.heartbeat.active": "Ready nodes.",
    "nomad.runtime.alloc_bytes": "Memory of the daemon, in bytes.",
    "nomad.runtime.sys_bytes": "Memory that the daemon has reserved, in bytes.",
    "nomad.runtime.heap_objects": "Memory blocks that Python has allocated.",
    "nomad.runtime.num_goroutines": "Tasks of Trio, under Nomad's name for goroutines.",
    "nomad.runtime.total_gc_runs": "Garbage collections of Python.",
    "nomad.raft.appliedIndex": "Index of the latest write.",
    "nomad.raft.lastIndex": "Index of the latest write; one server has no unapplied writes.",
    "steward.notifications": "Messages by receiver: sent, failed and dropped so far, and pending.",
    "steward.collected": "Deleted rows so far, by kind.",
    "steward.store.bytes": "Size of the store's file, in bytes.",
    "steward.store.free_bytes": "Free space inside the store's file, in bytes.",
    "steward.certificate.remaining_seconds": "Time until a certificate of a listener expires.",
    "steward.cloud_token.age_seconds": "Age of the oldest access token of a login method.",
    "steward.directory_keys.age_seconds": "Age of the directory keys that a login method uses.",
}
