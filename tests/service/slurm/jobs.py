"""Jobs for the pool of a cluster."""

from typing import Any

from tests.service.slurm.conftest import POOL

Document = dict[str, Any]


def script(job_id: str, text: str, **task: object) -> Document:
    """Return a batch job with one task that runs a script; nothing of it is tried again."""
    config = {"command": "/bin/sh", "args": ["-c", text]}
    one = {
        "Name": "main",
        "Driver": "slurm",
        "Config": config,
        "Resources": {"CPU": 100, "MemoryMB": 50},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        **task,
    }
    group = {
        "Name": "group",
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "EphemeralDisk": {"SizeMB": 10},
        "Tasks": [one],
    }
    return {"ID": job_id, "Type": "batch", "NodePool": POOL, "TaskGroups": [group]}
