"""Nomad's Python client library: every public method.

Each method is called once, in the order of the table. Its result must contain the fields that users
read. `UNSUPPORTED` lists methods that do not work in Steward, with reasons; the list only shrinks.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.wire.scenarios import bootstrapped, daemon

nomad = pytest.importorskip(
    "nomad", reason="the client library is missing: install the group dev of pyproject.toml"
)
api = pytest.importorskip("nomad.api")

UNSUPPORTED = {
    "acl.generate_bootstrap": "done once, before the other methods have a token",
    "client.stream_file.stream": "follows the file, and waits for an end that does not come",
    "node.drain_node": "sends a form that the peer dropped: no body",
    "operator.delete_peer": "this is the only server",
    "sentinel.create_policy": "not part of the peer's free edition",
    "sentinel.delete_policy": "not part of the peer's free edition",
    "sentinel.get_policies": "not part of the peer's free edition",
    "sentinel.get_policy": "not part of the peer's free edition",
    "sentinel.update_policy": "not part of the peer's free edition",
}
TASK = {
    "Name": "main",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/sh", "args": ["-c", "echo hello; exec sleep 300"]},
    "Resources": {"CPU": 20, "MemoryMB": 20},
    "KillTimeout": 1_000_000_000,
}


def job(job_id: str, count: int = 0, **fields: Any) -> dict[str, Any]:
    group = {"Name": "web", "Count": count, "Tasks": [TASK]}
    return {"Job": {"ID": job_id, "Name": job_id, "TaskGroups": [group], **fields}}


class World:
    """A client, and a job with an allocation that runs."""

    def __init__(self, client: Any) -> None:
        self.n = client
        canary = {"Canary": 1, "MaxParallel": 1, "MinHealthyTime": 0}
        self.eval_id = client.jobs.register_job(job("web", 1, Update=canary))["EvalID"]
        self.alloc_id = self.until(lambda: self._running("web"))
        client.jobs.register_job(job("launcher", 1, Type="batch", ParameterizedJob={}))
        periodic = {"Enabled": True, "SpecType": "cron", "Specs": ["0 0 1 1 *"]}
        client.jobs.register_job(job("clock", Type="batch", Periodic=periodic))
        self.deployment = self.until(lambda: client.job.get_deployment("web"))["ID"]
        self.node = client.nodes.get_nodes()[0]["ID"]
        self.token = ""

    def _running(self, job_id: str) -> str:
        found = client_allocations(self.n, job_id)
        return found[0]["ID"] if found and found[0]["ClientStatus"] == "running" else ""

    def until(self, look: Callable[[], Any]) -> Any:
        """Return the result of `look` as soon as it is not empty."""
        for _ in range(200):
            if found := look():
                return found
            time.sleep(0.05)  # the library has no blocking queries
        raise AssertionError("the expected result did not appear")

    def events(self) -> Any:
        thread, end, found = self.n.event.stream.get_stream(index=1, topic={"Job": "web"})
        thread.start()
        line = found.get(timeout=10)
        end.set()
        return line

    def deploy(self) -> str:
        """Begin a deployment with a canary; return its ID once it exists."""
        version = self.n.job.get_job("web")["Version"]
        canary = {"Canary": 1, "MaxParallel": 1, "MinHealthyTime": 0}
        self.n.jobs.register_job(job("web", 1, Update=canary, Meta={"v": str(version + 1)}))

        def placed() -> str:
            found = self.n.job.get_deployment("web")
            group = found["TaskGroups"]["web"]
            ready = found["JobVersion"] == version + 1 and group["HealthyAllocs"]
            return found["ID"] if ready else ""

        return str(self.until(placed))

    def make_token(self) -> Any:
        made = self.n.acl.create_token({"Name": "x", "Type": "client", "Policies": ["reader"]})
        self.token = made["AccessorID"]
        return made


def client_allocations(client: Any, job_id: str) -> Any:
    return client.job.get_allocations(job_id)


RULES = {"Name": "reader", "Rules": 'namespace "default" { policy = "read" }'}
SCALING = {"Min": 0, "Max": 3, "Enabled": True}

# The calls, in order. The result of each must be true, unless None is expected.
CALLS: dict[str, Callable[[World], Any]] = {
    "acl.get_tokens": lambda w: w.n.acl.get_tokens(),
    "acl.get_self_token": lambda w: w.n.acl.get_self_token()["AccessorID"],
    "acl.create_policy": lambda w: w.n.acl.create_policy("reader", RULES).ok,
    "acl.update_policy": lambda w: w.n.acl.update_policy("reader", RULES).ok,
    "acl.get_policies": lambda w: w.n.acl.get_policies(),
    "acl.get_policy": lambda w: w.n.acl.get_policy("reader")["Rules"],
    "acl.create_token": lambda w: w.make_token()["SecretID"],
    "acl.get_token": lambda w: w.n.acl.get_token(w.token)["Name"],
    "acl.update_token": lambda w: w.n.acl.update_token(
        w.token, {"AccessorID": w.token, "Name": "y", "Type": "client", "Policies": ["reader"]}
    ),
    "acl.delete_token": lambda w: w.n.acl.delete_token(w.token),
    "acl.delete_policy": lambda w: w.n.acl.delete_policy("reader"),
    "agent.get_agent": lambda w: w.n.agent.get_agent()["member"]["Name"],
    "agent.get_members": lambda w: w.n.agent.get_members()["Members"],
    "agent.get_servers": lambda w: w.n.agent.get_servers(),
    "agent.update_servers": lambda w: w.n.agent.update_servers(w.n.agent.get_servers()) == 200,
    "agent.join_agent": lambda w: w.n.agent.join_agent("192.0.2.1:4648")["error"],
    "agent.force_leave": lambda w: w.n.agent.force_leave("nobody") == 200,
    "allocation.get_allocation": lambda w: w.n.allocation.get_allocation(w.alloc_id)["Job"],
    "allocations.get_allocations": lambda w: w.n.allocations.get_allocations(),
    "client.ls.list_files": lambda w: w.n.client.ls.list_files(w.alloc_id),
    "client.cat.read_file": lambda w: (
        w.n.client.cat.read_file(w.alloc_id, "/alloc/logs/main.stdout.0") == "hello\n"
    ),
    "client.read_at.read_file_offset": lambda w: (
        w.n.client.read_at.read_file_offset(w.alloc_id, 1, 3, "/alloc/logs/main.stdout.0") == "ell"
    ),
    "client.stat.stat_file": lambda w: w.n.client.stat.stat_file(w.alloc_id, "/alloc")["IsDir"],
    "client.stream_logs.stream": lambda w: (
        "aGVsbG8K" in w.n.client.stream_logs.stream(w.alloc_id, "main", "stdout")
    ),
    "client.stats.read_stats": lambda w: w.n.client.stats.read_stats()["Memory"]["Total"],
    "client.allocation.read_allocation_stats": lambda w: (
        w.n.client.allocation.read_allocation_stats(w.alloc_id)["Tasks"]
    ),
    "client.allocation.restart_allocation": lambda w: (
        w.n.client.allocation.restart_allocation(w.alloc_id) == {"Index": 0}
    ),
    "deployment.get_deployment": lambda w: w.n.deployment.get_deployment(w.deployment)["JobID"],
    "deployment.get_deployment_allocations": lambda w: w.n.deployment.get_deployment_allocations(
        w.deployment
    ),
    "deployments.get_deployments": lambda w: w.n.deployments.get_deployments(),
    "evaluation.get_evaluation": lambda w: w.n.evaluation.get_evaluation(w.eval_id)["JobID"],
    "evaluation.get_allocations": lambda w: w.n.evaluation.get_allocations(w.eval_id),
    "evaluations.get_evaluations": lambda w: w.n.evaluations.get_evaluations(),
    "event.stream.get_stream": lambda w: w.events()["Events"],
    "job.get_job": lambda w: w.n.job.get_job("web")["ID"] == "web",
    "job.get_versions": lambda w: w.n.job.get_versions("web")["Versions"],
    "job.get_allocations": lambda w: w.n.job.get_allocations("web"),
    "job.get_evaluations": lambda w: w.n.job.get_evaluations("web"),
    "job.get_deployments": lambda w: w.n.job.get_deployments("web"),
    "job.get_deployment": lambda w: w.n.job.get_deployment("web")["ID"],
    "job.get_summary": lambda w: w.n.job.get_summary("web")["Summary"]["web"],
    "job.plan_job": lambda w: w.n.job.plan_job("new", job("new"), diff=True)["Diff"]["Type"],
    "job.register_job": lambda w: w.n.job.register_job("scaled", scaled())["EvalID"],
    "job.stable_job": lambda w: w.n.job.stable_job("web", 0, stable=True)["Index"],
    "job.periodic_job": lambda w: w.n.job.periodic_job("clock")["EvalID"],
    "job.dispatch_job": lambda w: w.n.job.dispatch_job("launcher")["DispatchedJobID"],
    "jobs.get_jobs": lambda w: w.n.jobs.get_jobs(prefix="we"),
    "jobs.parse": lambda w: w.n.jobs.parse('job "x" {\n  type = "batch"\n}')["ID"] == "x",
    "jobs.register_job": lambda w: w.n.jobs.register_job(job("other"))["EvalID"],
    "metrics.get_metrics": lambda w: w.n.metrics.get_metrics()["Gauges"],
    "namespace.create_namespace": lambda w: w.n.namespace.create_namespace({"Name": "team"}).ok,
    "namespace.update_namespace": lambda w: (
        w.n.namespace.update_namespace("team", {"Name": "team", "Description": "ours"}).ok
    ),
    "namespace.get_namespace": lambda w: w.n.namespace.get_namespace("team")["Description"],
    "namespaces.get_namespaces": lambda w: w.n.namespaces.get_namespaces(prefix="te"),
    "namespace.delete_namespace": lambda w: w.n.namespace.delete_namespace("team").ok,
    "node.get_node": lambda w: w.n.node.get_node(w.node)["Name"],
    "node.get_allocations": lambda w: w.n.node.get_allocations(w.node),
    "node.evaluate_node": lambda w: w.n.node.evaluate_node(w.node)["EvalIDs"],
    "nodes.get_nodes": lambda w: w.n.nodes.get_nodes(),
    "operator.get_configuration": lambda w: w.n.operator.get_configuration()["Servers"],
    "regions.get_regions": lambda w: w.n.regions.get_regions() == ["global"],
    "scaling.get_scaling_policies": lambda w: w.n.scaling.get_scaling_policies(job="scaled"),
    "scaling.get_scaling_policy": lambda w: w.n.scaling.get_scaling_policy(
        w.n.scaling.get_scaling_policies()[0]["ID"]
    )["Max"],
    "search.search": lambda w: w.n.search.search("we", "jobs")["Matches"]["jobs"] == ["web"],
    "search.fuzzy_search": lambda w: w.n.search.fuzzy_search("eb", "all")["Matches"]["jobs"],
    "status.leader.get_leader": lambda w: w.n.status.leader.get_leader(),
    "status.peers.get_peers": lambda w: w.n.status.peers.get_peers(),
    "validate.validate_job": lambda w: w.n.validate.validate_job(job("x")).ok,
    "variable.create_variable": lambda w: w.n.variable.create_variable(
        "app/db", {"Items": {"k": "v"}}, cas=0
    )["ModifyIndex"],
    "variable.get_variable": lambda w: w.n.variable.get_variable("app/db")["Items"] == {"k": "v"},
    "variables.get_variables": lambda w: w.n.variables.get_variables(prefix="app"),
    "variable.delete_variable": lambda w: w.n.variable.delete_variable("app/db").ok,
    "deployment.pause_deployment": lambda w: w.n.deployment.pause_deployment(w.deploy(), True),
    "deployment.fail_deployment": lambda w: w.n.deployment.fail_deployment(
        w.n.job.get_deployment("web")["ID"]
    ),
    "deployment.promote_deployment_all": lambda w: w.n.deployment.promote_deployment_all(
        w.deploy()
    )["EvalID"],
    "deployment.promote_deployment_groups": lambda w: w.n.deployment.promote_deployment_groups(
        w.deploy(), ["web"]
    )["EvalID"],
    "deployment.deployment_allocation_health": lambda w: (
        w.n.deployment.deployment_allocation_health(*placed(w))["EvalID"]
    ),
    "client.allocation.signal_allocation": lambda w: w.n.client.allocation.signal_allocation(
        running(w), "SIGCONT"
    ),
    "job.revert_job": lambda w: w.n.job.revert_job("web", 0)["EvalID"],
    "job.evaluate_job": lambda w: w.n.job.evaluate_job("web"),
    "node.eligible_node": lambda w: w.n.node.eligible_node(w.node, ineligible=True)["Index"],
    "node.drain_node_with_spec": lambda w: w.n.node.drain_node_with_spec(
        w.node, {}, mark_eligible=True
    )["NodeModifyIndex"],
    "node.purge_node": lambda w: w.n.node.purge_node(w.node)["NodeModifyIndex"],
    "allocation.stop_allocation": lambda w: w.n.allocation.stop_allocation(running(w))["EvalID"],
    "job.deregister_job": lambda w: w.n.job.deregister_job("web", purge=False)["EvalID"],
    "client.gc_allocation.garbage_collect": lambda w: collect(w),
    "client.gc_all_allocations.garbage_collect": lambda w: (
        w.n.client.gc_all_allocations.garbage_collect() is None
    ),
    "system.initiate_garbage_collection": lambda w: w.n.system.initiate_garbage_collection(),
    "system.reconcile_summaries": lambda w: w.n.system.reconcile_summaries(),
}


def scaled() -> dict[str, Any]:
    made = job("scaled")
    made["Job"]["TaskGroups"][0]["Scaling"] = SCALING
    return made


def running(world: World) -> str:
    def look() -> str:
        found = [
            client_alloc["ID"]
            for client_alloc in client_allocations(world.n, "web")
            if client_alloc["ClientStatus"] == "running" and client_alloc["DesiredStatus"] == "run"
        ]
        return found[0] if found else ""

    return str(world.until(look))


def placed(world: World) -> tuple[str, list[str]]:
    deployment = world.deploy()
    found = world.n.deployment.get_deployment_allocations(deployment)
    return deployment, [found[0]["ID"]]


def collect(world: World) -> bool:
    def ended() -> str:
        found = world.n.allocation.get_allocation(world.alloc_id)
        return world.alloc_id if found["ClientStatus"] == "complete" else ""

    return world.n.client.gc_allocation.garbage_collect(world.until(ended)) is None


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with daemon("--acl") as url:
        secret = bootstrapped(url)["token"]
        yield World(nomad.Nomad(address=url, token=secret, timeout=20))


@pytest.mark.parametrize("name", CALLS)
def test_client_method_gets_a_response(world: World, name: str) -> None:
    assert CALLS[name](world) not in (False, "", [], {})


def methods(value: Any, path: str) -> Iterator[str]:
    """Yield the public methods of a part of the client, and of the parts in it."""
    if not type(value).__module__.startswith("nomad.api"):
        return
    for name, _ in inspect.getmembers(type(value), inspect.isfunction):
        if not name.startswith("_") and name != "request":
            yield f"{path}.{name}"
    for name, inner in vars(value).items():
        yield from methods(inner, f"{path}.{name}")


def test_every_client_method_is_called_or_listed_with_a_reason(world: World) -> None:
    parts = [
        name
        for name, value in vars(type(world.n)).items()
        if isinstance(value, property) and not name.startswith("_")
    ]
    found = {method for name in parts for method in methods(getattr(world.n, name), name)}
    assert found - CALLS.keys() == UNSUPPORTED.keys()
