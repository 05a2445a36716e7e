"""Random, realistic jobs. The ID of a job determines its kind."""

import random
from typing import Any

from storage.records.base import HOUR, MINUTE, SECOND

KINDS = {
    "web": "service",
    "shop": "service",
    "mail": "service",
    "sums": "batch",
    "agent": "system",
    "sweep": "sysbatch",
    "clock": "periodic",
    "nightly": "periodic",
    "letters": "parameterized",
    "reports": "parameterized",
}
SPECS = {"clock": "*/10 * * * *", "nightly": "15 3 * * *"}  # always the same for a job


def draw(rng: random.Random, job_id: str) -> dict[str, Any]:
    """Return the document of a job with this ID."""
    kind = KINDS[job_id]
    document: dict[str, Any] = {
        "ID": job_id,
        "Datacenters": ["*"],
        "Type": _type(rng, kind),
        "Priority": rng.choice((20, 50, 80)),
        "TaskGroups": [_group(rng, f"g{number}", kind) for number in range(rng.choice((1, 1, 2)))],
    }
    if kind == "periodic":
        document["Periodic"] = {
            "Enabled": True,
            "SpecType": "cron",
            "Spec": SPECS[job_id],
            "ProhibitOverlap": rng.random() < 0.5,
        }
        document["Meta"] = _some(rng, steward_catch_up=("none", "last", "all"))
    if kind == "parameterized":
        document["ParameterizedJob"] = {}
        document["Meta"] = _some(
            rng,
            steward_children_at_once=("1", "2", "3"),
            steward_children_kept=("2", "5"),
        )
        if "steward_children_at_once" in document["Meta"]:
            document["Meta"] |= _some(rng, steward_children_beyond=("queue", "drop", "replace"))
    return document


def _type(rng: random.Random, kind: str) -> str:
    if kind == "periodic":
        return "batch"
    # A child that runs indefinitely, or on every node, is unusual but allowed.
    return "batch" if kind == "parameterized" else kind


def _some(rng: random.Random, **choices: tuple[str, ...]) -> dict[str, str]:
    return {key: rng.choice(texts) for key, texts in choices.items() if rng.random() < 0.5}


def _group(rng: random.Random, name: str, kind: str) -> dict[str, Any]:
    lasts = kind in ("service", "system")
    everywhere = kind in ("system", "sysbatch")
    group: dict[str, Any] = {
        "Name": name,
        "Count": 1 if everywhere else rng.choice((0, 1, 1, 2, 3, 5)),
        "Tasks": [_task(rng, "main", lasts=lasts)],
        "EphemeralDisk": {"SizeMB": rng.choice((150, 300, 4000))},
        "RestartPolicy": {
            "Attempts": rng.choice((0, 1, 3)),
            "Interval": rng.choice((MINUTE, HOUR)),
            "Delay": rng.choice((SECOND, 15 * SECOND)),
            "Mode": rng.choice(("fail", "fail", "delay")),
        },
    }
    if not everywhere and rng.random() < 0.7:
        group["ReschedulePolicy"] = _reschedule(rng)
    if kind in ("service", "system") and rng.random() < 0.7:
        group["Update"] = _update(rng, canaries=kind == "service")
    if rng.random() < 0.25:
        group["Tasks"].insert(0, _beside(rng, lasts=lasts))
    if rng.random() < 0.15:
        group["Networks"] = [{"ReservedPorts": [{"Label": "p", "Value": rng.choice((8080, 8081))}]}]
    if rng.random() < 0.1:
        group["Constraints"] = [{"LTarget": "${meta.zone}", "Operand": "=", "RTarget": "nowhere"}]
    if rng.random() < 0.1:
        group["MaxRunDuration"] = rng.choice((MINUTE, HOUR))
    if rng.random() < 0.2:
        group["ShutdownDelay"] = 5 * SECOND
    return group


def _task(rng: random.Random, name: str, *, lasts: bool) -> dict[str, Any]:
    bad = rng.random() < 0.3
    config = {
        "run_for": 0 if lasts else rng.choice((0, 1, 5, 60, 600)) or 1,
        "fails": rng.choice((30, 100)) if bad else rng.choice((0, 0, 10)),
        "start_fails": rng.choice((0, 0, 20, 60)),
        "start_breaks": rng.choice((0, 0, 0, 10)),
        "hangs": rng.choice((0, 30)),
        "version": rng.randrange(3),
    }
    return {
        "Name": name,
        "Driver": "simulated",
        "Config": config,
        "Resources": {"CPU": rng.choice((50, 100, 400, 900)), "MemoryMB": rng.choice((50, 500))},
        "KillTimeout": rng.choice((SECOND, 5 * SECOND, 30 * SECOND)),
        "LogConfig": {"Disabled": True},
    }


def _beside(rng: random.Random, *, lasts: bool) -> dict[str, Any]:
    """Return a task that runs before, during or after the main task."""
    hook, sidecar = rng.choice((("prestart", False), ("prestart", True), ("poststop", False)))
    task = _task(rng, "beside", lasts=sidecar)
    return {**task, "Lifecycle": {"Hook": hook, "Sidecar": sidecar}}


def _reschedule(rng: random.Random) -> dict[str, Any]:
    function = rng.choice(("constant", "exponential", "fibonacci"))
    policy = {
        "Delay": rng.choice((5 * SECOND, 30 * SECOND)),
        "DelayFunction": function,
        "MaxDelay": 0 if function == "constant" else 10 * MINUTE,
    }
    if rng.random() < 0.4:
        policy["Delay"] *= 10  # repeated failures must not take hours
        return {**policy, "Unlimited": True, "Attempts": 0, "Interval": 0}
    return {**policy, "Unlimited": False, "Attempts": rng.choice((0, 1, 2)), "Interval": HOUR}


def _update(rng: random.Random, *, canaries: bool) -> dict[str, Any]:
    healthy, progress = rng.choice(((30, 60), (300, 600)))
    canary = rng.choice((0, 0, 1, 2)) if canaries else 0
    return {
        "MaxParallel": rng.choice((0, 1, 1, 2)),
        "HealthCheck": rng.choice(("task_states", "task_states", "manual")),
        "MinHealthyTime": rng.choice((1, 10)) * SECOND,
        "HealthyDeadline": healthy * SECOND,
        "ProgressDeadline": rng.choice((0, progress, progress, progress)) * SECOND,
        "AutoRevert": rng.random() < 0.4,
        "AutoPromote": bool(canary) and rng.random() < 0.5,
        "Canary": canary,
    }
