"""Metrics of the real daemon, read as programs read them."""

from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from daemon.api.cluster.metric_help import MEANINGS
from daemon.timers import INTERVAL
from tests.service.daemon import Steward

Labels = dict[str, str]


def job(job_id: str, longest: int | None = None, **fields: object) -> dict[str, object]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["60"]},
        "Resources": {"CPU": 20, "MemoryMB": 30},
    }
    limit = {} if longest is None else {"MaxRunDuration": longest * 10**9}
    group = {"Name": "web", "Tasks": [task], **limit}
    return {"ID": job_id, "TaskGroups": [group], **fields}


async def scraped(steward: Steward) -> dict[str, list[tuple[Labels, float]]]:
    """Return the samples by name, read by the parser of Prometheus' own library."""
    answer = await steward.request("GET", "/v1/metrics", format="prometheus")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def test_running_job_is_counted_with_nomad_metric_names(steward: Steward) -> None:
    (one,) = await steward.run_job(job("web", longest=600, Type="batch"))
    found = await scraped(steward)
    summary = {"job": "web", "namespace": "default", "task_group": "web"}
    assert found["nomad_nomad_job_summary_running"] == [(summary, 1.0)]
    assert found["nomad_nomad_job_status_running"] == [({}, 1.0)]
    assert found["nomad_nomad_blocked_evals_total_blocked"] == [({}, 0.0)]
    ((labels, memory),) = found["nomad_client_allocs_memory_allocated"]
    assert (labels["alloc_id"], labels["task"], memory) == (one["ID"], "main", 30 * 2**20)
    assert found["nomad_client_allocs_memory_rss"][0][1] > 0
    assert found["nomad_client_allocated_cpu"][0][1] == 20
    ((of_node, tasks),) = found["nomad_client_tasks_running"]
    assert (of_node["node_id"], of_node["node_status"], tasks) == (one["NodeID"], "ready", 1)
    assert found["nomad_client_tasks_dead"] == [(of_node, 0.0)]
    assert found["nomad_nomad_plan_queue_depth"] == [({}, 0.0)]
    assert found["nomad_nomad_heartbeat_active"] == [({}, 1.0)]
    for name in ("sys_bytes", "heap_objects", "num_goroutines", "total_gc_runs"):
        assert found[f"nomad_runtime_{name}"][0][1] > 0
    assert found["nomad_client_allocs_oom_killed"] == [(labels, 0.0)]
    ((of_group, longest),) = found["nomad_client_allocs_max_run_duration_configured_seconds"]
    assert (of_group["alloc_id"], longest) == (one["ID"], 600)
    ((_, left),) = found["nomad_client_allocs_max_run_duration_remaining_seconds"]
    assert 0 < left < 600


async def test_blocked_evaluations_are_counted(steward: Steward) -> None:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": 20, "MemoryMB": 10_000_000},
    }
    await steward.register({"ID": "big", "TaskGroups": [{"Name": "web", "Tasks": [task]}]})
    await steward.until("/v1/evaluations", lambda shown: len(shown) == 2)
    found = await scraped(steward)
    assert found["nomad_nomad_blocked_evals_total_blocked"] == [({}, 1.0)]
    assert found["nomad_nomad_job_summary_queued"][0][1] == 1


async def test_unusual_names_are_escaped_in_labels(steward: Steward) -> None:
    await steward.register(job('a"b\\c'))
    found = await scraped(steward)
    assert found["nomad_nomad_job_summary_running"][0][0]["job"] == 'a"b\\c'


async def test_live_children_are_distinguished(steward: Steward) -> None:
    await steward.register(job("parent", Type="batch", ParameterizedJob={}))
    child = (await steward.post("/v1/job/parent/dispatch", {}))["DispatchedJobID"]
    await steward.allocations(child, "running")
    found = await scraped(steward)
    running = [labels for labels, value in found["nomad_nomad_job_summary_running"] if value]
    assert [labels["dispatch_id"] for labels in running] == [child.removeprefix("parent/dispatch-")]


async def test_same_values_are_returned_as_json(steward: Steward) -> None:
    await steward.run_job(job("web", longest=600, Type="batch"))
    shown = await steward.get("/v1/metrics")
    gauges = {gauge["Name"]: gauge for gauge in shown["Gauges"]}
    running = gauges["nomad.nomad.job_summary.running"]
    assert (running["Value"], running["Labels"]["job"]) == (1, "web")
    assert {"Timestamp", "Counters", "Samples", "Points"} < shown.keys()
    # Each gauge is documented, and each documented gauge exists, except for those without data
    # here.
    assert gauges.keys() <= MEANINGS.keys()
    absent = {
        "steward.certificate.remaining_seconds",
        "steward.cloud_token.age_seconds",
        "steward.collected",
        "steward.directory_keys.age_seconds",
        "steward.faults",
        "steward.notifications",
        "steward.store.unreadable_rows",
    }
    assert MEANINGS.keys() - gauges.keys() <= absent


async def listed_jobs(steward: Steward) -> tuple[dict[str, Any], dict[str, Any]]:
    """List jobs until the metrics contain the timer of this request; return metrics and timer."""
    with trio.fail_after(3 * INTERVAL):
        while True:
            await steward.get("/v1/jobs")
            shown = await steward.get("/v1/metrics")
            for sample in shown["Samples"]:
                if sample["Name"] == "nomad.nomad.job.list":
                    return shown, sample


async def test_timers_are_summaries_and_counters_have_nomad_names(steward: Steward) -> None:
    await steward.run_job(job("timed"))
    found = await scraped(steward)
    for name in ("nomad_nomad_worker_invoke_scheduler_service", "nomad_nomad_plan_submit"):
        assert found[f"{name}_count"][0][1] >= 1
        assert {labels["quantile"] for labels, _ in found[name]} == {"0.5", "0.9", "0.99"}
        assert found[f"{name}_sum"][0][1] > 0
    assert found["nomad_nomad_job_register_count"][0][1] >= 1
    assert found["nomad_nomad_rpc_query"][0][1] >= 1
    shown, listed = await listed_jobs(steward)
    assert listed["Count"] >= 1
    assert listed["Min"] <= listed["Mean"] <= listed["Max"]
    assert [counter for counter in shown["Counters"] if counter["Name"] == "nomad.nomad.rpc.query"]
