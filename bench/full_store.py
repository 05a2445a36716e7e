"""Results of `bench.py` with tokens required, on an empty store and on a full store.

    python -m bench.full_store [--children 100000] [--events 1000000] [--only dispatch,logs]

A daemon runs one dispatched child to completion. The benchmark copies the rows of this child, until
the store has the given numbers of children and events. Each child has an evaluation, an allocation
and task events. The oldest events belong to children that no longer exist. `bench.py` then measures
a daemon on each store.
"""

import argparse
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from bench.copied_rows import copy
from bench.reads import daemon
from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME

SECRET = "b0075742-0000-4000-8000-000000000001"  # only for daemons of this benchmark
TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
PARENT = {
    "ID": "old",
    "Type": "batch",
    "ParameterizedJob": {"Payload": "optional"},
    "TaskGroups": [{"Name": "g", "Tasks": [TASK]}],
}
# An expression that spreads the IDs of copies evenly, like real IDs.
MIXED = "n * 2654435761 % 4294967296"
STEPS = 4  # writes per child: the dispatch, the placement, the start and the end
# The tables that have rows for a child job, each with the column that contains the child's ID.
# `OF_ALLOCATION` names the tables that have rows for the child's allocation.
OF_CHILD = {
    "jobs": "id",
    "job_versions": "job_id",
    "job_version_states": "job_id",
    "evaluations": "job_id",
    "allocations": "job_id",
}
OF_ALLOCATION = ("task_events",)
INDEXES = "UPDATE {table} SET last_index = (SELECT max(write_index) FROM events)"
# Each result of `bench.py`: its path in the JSON, its description and its target.
FIGURES = {
    "cold_start_s": ("cold start until a node is ready, s", "≤ 0.8"),
    "idle_pss_mib": ("idle memory (PSS), MiB", "≤ 60"),
    "submit_to_running p50_ms": ("submit → running, p50, ms", "≤ 20"),
    "submit_to_running p95_ms": ("the same, p95", "≤ 50"),
    "submit_to_exec p50_ms": ("submit → first instruction, p50, ms", "≤ 15"),
    "submit_to_exec p95_ms": ("the same, p95", "≤ 40"),
    "dispatch completed_per_s": ("dispatched and completed per s", ""),
    "dispatch share": ("the same, as a share of fork+exec", "≥ 0.10"),
    "dispatch accepted_per_s": ("accepted dispatches per s", "≥ 150"),
    "dispatch call p50_ms": ("latency of a dispatch call, p50, ms", "≤ 22"),
    "dispatch call p95_ms": ("the same, p95", "≤ 50"),
    "memory start_all_s": ("40 tasks of one job, all running, s", "≤ 0.3"),
    "memory kib_per_task": ("memory per running task, KiB", "≤ 307"),
    "memory extra_processes_per_task": ("processes per running task", "≤ 1"),
    "end_pss_mib": ("memory after the run, MiB", "≤ 70"),
    "get_job_1 per_s": ("reads of one job per s, 1 client", "≥ 2,500"),
    "get_job_8 per_s": ("the same, 8 clients", "≥ 3,500"),
    "list_jobs_1 per_s": ("lists of 301 jobs per s", "≥ 560"),
    "blocking_wake all_ms": ("50 blocked readers woken, ms", "≤ 40"),
    "logs mib_per_s": ("log throughput of one task, MiB/s", "≥ 520"),
    "limits fork_exec_per_s": ("the host: fork+exec per s", ""),
    "limits fdatasync_per_s": ("the host: fdatasync per s", ""),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-filled-", dir=Path.cwd()) as name:
        directory = Path(name)
        empty, full = directory / "empty", directory / "full"
        (directory / "steward.toml").write_text("retention_events = 100_000_000\n")
        begin(empty)
        shutil.copytree(empty, full)
        run_one(full)
        begun = time.perf_counter()
        fill(store_dir(full) / FILE_NAME, options.children, options.events)
        print(f"filled in {time.perf_counter() - begun:.0f} s", flush=True)
        show([measure(data_dir, options.only) for data_dir in (empty, full)])


# --- stores ---


def begin(data_dir: Path) -> None:
    """Create a store with a known bootstrap token."""
    with daemon(data_dir, "--acl") as (port, _):
        body = {"BootstrapSecret": SECRET}
        httpx.post(f"http://127.0.0.1:{port}/v1/acl/bootstrap", json=body).raise_for_status()


def run_one(data_dir: Path) -> None:
    """Run one child to completion."""
    with daemon(data_dir, "--acl") as (port, _):
        asking = {"base_url": f"http://127.0.0.1:{port}/v1", "timeout": 30}
        with httpx.Client(headers={"X-Service-Token": SECRET}, **asking) as client:
            client.post("/jobs", json={"Job": PARENT}).raise_for_status()
            client.post("/job/old/dispatch", json={}).raise_for_status()
            while any(children(client)[state] for state in ("Pending", "Running")):
                time.sleep(0.1)


def children(client: httpx.Client) -> dict[str, int]:
    """Return the number of children of the parent job in each state."""
    return dict(client.get("/job/old/summary").json()["Children"])


def fill(file: Path, children: int, events: int) -> None:
    """Copy the child and its events until the store has `children` children and `events` events."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        child = connection.execute("SELECT id FROM jobs WHERE parent_id = 'old'").fetchone()["id"]
        placed = connection.execute("SELECT * FROM allocations").fetchone()
        texts = {
            child: f"printf('old/dispatch-%010d-%08x', n, {MIXED})",
            placed["id"]: f"printf('%08x-0000-4000-8000-00000000000a', {MIXED})",
            placed["eval_id"]: f"printf('%08x-0000-4000-8000-00000000000e', {MIXED})",
        }
        first = placed["create_index"] - 1  # the index of the dispatch
        for index in range(first, first + STEPS):
            for end in ",}":
                texts[f'Index":{index}{end}'] = (
                    f"""'Index":' || ({index} + n * {STEPS}) || '{end}'"""
                )
        of_child = f"write_index >= {first}"
        there = connection.execute(f"SELECT count(*) FROM events WHERE {of_child}").fetchone()[0]
        numbers = range(1, max(children, -(-events // there)))
        kept = numbers[-children + 1 :]
        # No other process uses the file, and an incomplete file is discarded.
        for setting in (
            *("foreign_keys = OFF", "journal_mode = OFF", "synchronous = OFF"),
            "cache_size = -500000",  # kiB
        ):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        for table, column in OF_CHILD.items():
            copy(connection, table, f"{column} = '{child}'", kept, texts, step=STEPS)
        for table in OF_ALLOCATION:
            copy(connection, table, f"allocation_id = '{placed['id']}'", kept, texts)
        copy(connection, "events", of_child, numbers, texts, step=STEPS, order="number")
        connection.execute(f"UPDATE jobs SET children_dead = {children} WHERE id = 'old'")
        for table in ("store", "table_indexes"):
            connection.execute(INDEXES.format(table=table))
        connection.execute("COMMIT")
        sizes = {
            table_name: count(connection, table_name)
            for table_name in ("allocations", "evaluations", "events")
        }
    print(", ".join(f"{number} {name}" for name, number in sizes.items()), flush=True)


def count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


# --- measurements ---


def measure(data_dir: Path, only: str) -> dict[str, Any]:
    """Return the results of `bench.py` for this data; `only` selects its measurements."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    config, file = data_dir.with_name("steward.toml"), data_dir.with_suffix(".json")
    start = (
        f"{sys.executable} -m daemon agent --dev --acl --config {config} --data-dir {data_dir} "
        f"--port {port} --log-level warning"
    )
    print(f"\n{data_dir.name}:", flush=True)
    subprocess.run(
        [
            *(sys.executable, Path(__file__).with_name("bench.py"), "--start", start),
            *("--url", f"http://127.0.0.1:{port}", "--token", SECRET),
            *("--only", only, "--json", file, "--log", data_dir.with_suffix(".log")),
            *("--list", "/v1/jobs?prefix=disp"),  # the same number of jobs in both stores
        ],
        check=True,
    )
    figures: dict[str, Any] = json.loads(file.read_text())
    if "completed_per_s" in (dispatch := figures.get("dispatch", {})):
        share = dispatch["completed_per_s"] / figures["limits"]["fork_exec_per_s"]
        dispatch["share"] = round(share, 3)
    return figures


def show(results_by_store: list[dict[str, Any]]) -> None:
    print(f"\n| {'Measurement':<38} | {'Target':<20} | {'Empty':>8} | {'Full':>8} |")
    for path, (name, target) in FIGURES.items():
        values = [figure(result, path.split()) for result in results_by_store]
        if None not in values:
            print(f"| {name:<38} | {target:<20} | {values[0]:>8} | {values[1]:>8} |")


def figure(value: object, path: list[str]) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


if __name__ == "__main__":
    main()
