"""An unreadable row affects only its own unit of work: the daemon starts, and other jobs run."""

import sqlite3
from contextlib import closing

import pytest
import trio

from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME
from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN

HOUR = 3600 * 10**9
SLEEPS = {"command": "/bin/sleep", "args": ["600"]}
ENDS = {"command": "/bin/true"}
# A row of the job `bad`: its table, the column that becomes unreadable, and the unit that is named.
ROWS = {
    "definition": ("job_versions", "document", "allocation"),
    "placement": ("allocations", "placement", "allocation"),
    "desired state": ("allocations", "desired", "allocation"),
    "client state": ("allocations", "client", "allocation"),
    "deployment": ("deployments", "document", "deployment"),
}


def job(name: str, config: object, **fields: object) -> dict[str, object]:
    task = {"Name": "main", "Driver": "raw_exec", "Config": config}
    groups = [{"Name": "web", "Tasks": [task]}]
    return {"ID": name, "Name": name, "Datacenters": ["dc1"], "TaskGroups": groups, **fields}


def replace(steward: Steward, table: str, column: str, text: str) -> str:
    """Replace the text in a column of a row, without the schema's triggers; return the old text."""
    with closing(sqlite3.connect(store_dir(steward.data_dir) / FILE_NAME)) as other, other:
        found = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = other.execute(found).fetchall()
        for name, _ in triggers:
            other.execute(f"DROP TRIGGER {name}")
        select = f"SELECT {column} FROM {table} WHERE job_id = 'bad'"  # noqa: S608  # constants
        ((before,),) = other.execute(select).fetchall()
        change = f"UPDATE {table} SET {column} = ? WHERE job_id = 'bad'"  # noqa: S608  # constants
        other.execute(change, (text,))
        for _, statement in triggers:
            other.execute(statement)
    return str(before)


@pytest.mark.parametrize("row", ROWS)
async def test_unreadable_row_affects_only_its_unit(steward: Steward, row: str) -> None:
    table, column, kind = ROWS[row]
    slow = {"MinHealthyTime": HOUR, "HealthyDeadline": 2 * HOUR, "ProgressDeadline": 3 * HOUR}
    for name in ("bad", "good"):
        await steward.run_job(job(name, SLEEPS, Update=slow))
    units = {
        item["ID"]
        for kind_of_object in ("allocations", "deployments")
        for item in await steward.get(f"/v1/job/bad/{kind_of_object}")
    }
    await steward.stop()
    before = replace(steward, table, column, "{")
    await steward.start()
    faults: list[dict[str, str]] = []
    with trio.fail_after(HAPPENS_WITHIN):
        while kind not in {fault["Kind"] for fault in faults}:
            faults = await steward.get("/v1/operator/faults")
    health = await steward.get("/v1/agent/health")
    assert health["server"]["ok"]
    metrics = await steward.get("/v1/metrics")
    named = {
        gauge["Labels"].get("kind") for gauge in metrics["Gauges"] if "faults" in gauge["Name"]
    }
    assert kind in named
    # The deployment of the other job is still watched, and jobs start and stop.
    (deployment,) = await steward.get("/v1/job/good/deployments")
    await steward.post(f"/v1/deployment/fail/{deployment['ID']}")
    await steward.register(job("new", ENDS, Type="batch"))
    await steward.allocations("new", "complete")
    await steward.delete("/v1/job/good")
    await steward.allocations("good", "complete")
    assert {fault["Key"] for fault in await steward.get("/v1/operator/faults")} <= units
    await steward.stop()
    replace(steward, table, column, before)
