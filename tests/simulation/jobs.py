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


def draw(dice: random.Random, job_id: str) -> dict[str, Any]:
    """Return the document of a job with this ID."""
    kind = KINDS[job_id]
    document: dict[str, Any] = {
        "ID": job_id,
        "Datacenters": ["*"],
        "Type": _type(dice, kind),
        "Priority": dice.choice((20, 50, 80)),
        "TaskGroups": [
            _group(dice, f"g{number}", kind) for number in range(dice.choice((1, 1, 2)))
        ],
    }
    if kind == "periodic":
        document["Periodic"] = {
            "Enabled": True,
            "SpecType": "cron",
            "Spec": SPECS[job_id],
            "ProhibitOverlap": dice.random() < 0.5,
        }
        document["Meta"] = _some(dice, steward_catch_up=("none", "last", "all"))
    if kind == "parameterized":
        document["ParameterizedJob"] = {}
        document["Meta"] = _some(
            dice,
            steward_children_at_once=("1", "2", "3"),
            steward_children_kept=("2", "5"),
        )
        if "steward_children_at_once" in document["Meta"]:
            document["Meta"] |= _some(dice, steward_children_beyond=("queue", "drop", "replace"))
    return document


def _type(dice: random.Random, kind: str) -> str:
    if kind == "periodic":
        return "batch"
    # A child that runs indefinitely, or on every node, is unusual but allowed.
    return "batch" if kind == "parameterized" else kind


def _some(dice: random.Random, **choices: tuple[str, ...]) -> dict[str, str]:
    return {key: dice.choice(texts) for key, texts in choices.items() if dice.random() < 0.5}


def _group(dice: random.Random, name: str, kind: str) -> dict[str, Any]:
    lasts = kind in ("service", "system")
    everywhere = kind in ("system", "sysbatch")
    group: dict[str, Any] = {
        "Name": name,
        "Count": 1 if everywhere else dice.choice((0, 1, 1, 2, 3, 5)),
        "Tasks": [_task(dice, "main", lasts=lasts)],
        "EphemeralDisk": {"SizeMB": dice.choice((150, 300, 4000))},
        "RestartPolicy": {
            "Attempts": dice.choice((0, 1, 3)),
            "Interval": dice.choice((MINUTE, HOUR)),
            "Delay": dice.choice((SECOND, 15 * SECOND)),
            "Mode": dice.choice(("fail", "fail", "delay")),
        },
    }
    if not everywhere and dice.random() < 0.7:
        group["ReschedulePolicy"] = _reschedule(dice)
    if kind in ("service", "system") and dice.random() < 0.7:
        group["Update"] = _update(dice, canaries=kind == "service")
    if dice.random() < 0.25:
        group["Tasks"].insert(0, _beside(dice, lasts=lasts))
    if dice.random() < 0.15:
        group["Networks"] = [
            {"ReservedPorts": [{"Label": "p", "Value": dice.choice((8080, 8081))}]}
        ]
    if dice.random() < 0.1:
        group["Constraints"] = [{"LTarget": "${meta.zone}", "Operand": "=", "RTarget": "nowhere"}]
    if dice.random() < 0.1:
        group["MaxRunDuration"] = dice.choice((MINUTE, HOUR))
    if dice.random() < 0.2:
        group["ShutdownDelay"] = 5 * SECOND
    return group


def _task(dice: random.Random, name: str, *, lasts: bool) -> dict[str, Any]:
    bad = dice.random() < 0.3
    config = {
        "run_for": 0 if lasts else dice.choice((0, 1, 5, 60, 600)) or 1,
        "fails": dice.choice((30, 100)) if bad else dice.choice((0, 0, 10)),
        "start_fails": dice.choice((0, 0, 20, 60)),
        "start_breaks": dice.choice((0, 0, 0, 10)),
        "hangs": dice.choice((0, 30)),
        "version": dice.randrange(3),
    }
    return {
        "Name": name,
        "Driver": "simulated",
        "Config": config,
        "Resources": {"CPU": dice.choice((50, 100, 400, 900)), "MemoryMB": dice.choice((50, 500))},
        "KillTimeout": dice.choice((SECOND, 5 * SECOND, 30 * SECOND)),
        "LogConfig": {"Disabled": True},
    }


def _beside(dice: random.Random, *, lasts: bool) -> dict[str, Any]:
    """Return a task that runs before, during or after the main task."""
    hook, sidecar = dice.choice((("prestart", False), ("prestart", True), ("poststop", False)))
    task = _task(dice, "beside", lasts=sidecar)
    return {**task, "Lifecycle": {"Hook": hook, "Sidecar": sidecar}}


def _reschedule(dice: random.Random) -> dict[str, Any]:
    function = dice.choice(("constant", "exponential", "fibonacci"))
    policy = {
        "Delay": dice.choice((5 * SECOND, 30 * SECOND)),
        "DelayFunction": function,
        "MaxDelay": 0 if function == "constant" else 10 * MINUTE,
    }
    if dice.random() < 0.4:
        policy["Delay"] *= 10  # repeated failures must not take hours
        return {**policy, "Unlimited": True, "Attempts": 0, "Interval": 0}
    return {**policy, "Unlimited": False, "Attempts": dice.choice((0, 1, 2)), "Interval": HOUR}


def _update(dice: random.Random, *, canaries: bool) -> dict[str, Any]:
    healthy, progress = dice.choice(((30, 60), (300, 600)))
    canary = dice.choice((0, 0, 1, 2)) if canaries else 0
    return {
        "MaxParallel": dice.choice((0, 1, 1, 2)),
        "HealthCheck": dice.choice(("task_states", "task_states", "manual")),
        "MinHealthyTime": dice.choice((1, 10)) * SECOND,
        "HealthyDeadline": healthy * SECOND,
        "ProgressDeadline": dice.choice((0, progress, progress, progress)) * SECOND,
        "AutoRevert": dice.random() < 0.4,
        "AutoPromote": bool(canary) and dice.random() < 0.5,
        "Canary": canary,
    }
