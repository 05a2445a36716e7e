"""Every list of the jobs API has pages, except for routes with a stated reason.

A route whose response is a list must honor `per_page`, return the token of the next page, and show
the whole list page by page. A new route needs objects in this store, or a row in a table below.
"""

from itertools import count
from typing import Any, cast

import msgspec
import pytest
import trio

from bench import other_objects
from bench.expensive_requests import WIDE
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.identity.lazy_methods import LazyMethods
from daemon.web.dispatcher import Dispatcher
from daemon.web.request import ReadRoute
from storage.queries import (
    allocations,
    auth_methods,
    calendars,
    cluster_runs,
    concurrency,
    freezes,
    host_volumes,
    kept_files,
    node_pools,
    nodes,
    notifications,
    payload_files,
    periodic,
    runs,
    services,
    triggers,
)
from storage.records.acl import Token
from storage.records.auth_method import AuthMethod, BindingRule
from storage.records.calendar import Calendar
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.flow import FlowRun
from storage.records.freeze import Freeze
from storage.records.host_volume import DynamicVolume
from storage.records.job import Periodic
from storage.records.node_pool import NodePool
from storage.records.notification import NotifyEvent, NotifySettings
from storage.records.periodic import Slot, SlotOutcome
from storage.records.scaling import Scaling
from storage.records.service import ServiceAddress
from storage.records.trigger import JobTrigger, TriggerState
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api import full_store
from tests.parts.api.requests import parts_of
from tests.parts.api.test_pages_cost import ask
from tests.parts.api.test_stall import KNOWN
from tests.parts.ui.conftest import Runner
from tests.samples import NOW, group, job
from tests.unit.scheduler.world import node

NUMBER = 60
FEW = 5
PAGE = 2
NAMES = {**KNOWN, "job_id": WIDE}
QUERIES = {"/v1/volumes": "&type=host"}
PATHS = sorted(
    {route.path for route in ROUTES if isinstance(route, ReadRoute)}
    - {"/v1/operator/keyring/keys"}  # has an element for each signing key
)
# Lists without pages, with the reason.
WHOLE = {
    "/v1/job/{job_id}/runs": "shows the newest runs, at most 500; per_page limits their number",
    "/v1/job/{job_id}/actions": "is of one job, whose size is limited",
    "/v1/job/{job_id}/run/outputs": "is of one run, whose steps and outputs are limited",
    "/v1/allocation/{alloc_id}/services": "is of one allocation, whose job's size is limited",
    "/v1/evaluation/{eval_id}/allocations": "is of one evaluation, without pages in Nomad",
    "/v1/deployment/allocations/{deployment_id}": "is of one deployment, without pages in Nomad",
    "/v1/node/pool/{name}/nodes": "has one for each host and cluster",
    "/v1/agent/settings": "has one for each setting",
    "/v1/agent/servers": "has one",
    "/v1/status/peers": "has one",
    "/v1/regions": "has one",
    "/v1/operator/faults": "has one for each unit that has failed and is retried",
    "/v1/plugins": "is empty: Steward has no such plugins",
}
# Routes whose response in this store is not a list with status 200, with the reason.
OTHER = {
    "/v1/job/{job_id}/tag": "is not supported",
    "/v1/job/{job_id}/submission": "is one object",
    "/v1/job/{job_id}/periodic": "is one object",
    "/v1/concurrency/{name}": "is one object",
    "/v1/scaling/policy/{policy_id}": "is one object",
    "/v1/payload/{digest}": "is one object",
    "/v1/search": "has at most 20 of each kind; it is asked with a body",
    "/v1/search/fuzzy": "has at most 20 of each kind; it is asked with a body",
    "/v1/client/identity": "is one object",
    "/v1/client/metadata": "is one object",
    "/v1/operator/keyring/{anything}": "has no other method",
    "/v1/acl/auth-method/": "lacks a name",
    "/v1/acl/binding-rule/": "lacks a name",
    "/v1/acl/policy/": "lacks a name",
    "/v1/acl/role/": "lacks a name",
    "/v1/acl/role/name/": "lacks a name",
    "/v1/acl/token/": "lacks a name",
    "/v1/namespace/": "lacks a name",
    "/v1/service/": "lacks a name",
    "/v1/var/": "lacks a name",
    "/v1/operator/license": "is empty",
    "/v1/var/{path}": "is one object",
    "/v1/acl/auth-method/{name}": "is one object",
    "/v1/acl/binding-rule/{rule_id}": "is one object",
    "/v1/volume/csi/{volume_id}": "is one object",
    "/v1/volume/host/{volume_id}": "is one object",
    "/v1/plugin/csi/{plugin_id}": "is one object",
    "/v1/sentinel/policies": "is not supported",
    "/v1/sentinel/policy/{name}": "is not supported",
    "/v1/quotas": "is not supported",
    "/v1/quota": "is not supported",
    "/v1/quota/{name}": "is not supported",
    "/v1/quota-usages": "is not supported",
    "/v1/recommendations": "is not supported",
    "/v1/recommendation/{id}": "is not supported",
}


_LAUNCH = """
    INSERT INTO periodic_jobs (namespace, job_id, followed_to, next_slot)
    VALUES ('default', :id, 0, :at)
    ON CONFLICT (namespace, job_id) DO UPDATE SET next_slot = excluded.next_slot
"""


def _policy(name: str) -> Scaling:
    target = {"Namespace": "default", "Job": name, "Group": name}
    return Scaling(id=name, target=target, type="horizontal", min=1, max=4)


def add_rest(tx: Transaction) -> None:
    """Add a few objects of the kinds that the store of the benchmark does not have."""
    (placed,) = allocations.of_job(tx, "default", "web")
    for number in range(FEW):
        name = f"few-{number}"
        cluster_run = ClusterRun(
            allocation_id=placed.id,
            task=name,
            number=0,
            pool="hpc",
            status=RunStatus.RUNNING,
            host=f"c{number % PAGE}",
        )
        cluster_runs.put(tx, cluster_run)
        calendar = Calendar(name="many-1", namespace="default", version=number + 1)
        calendars.put(tx, calendar, person="somebody", now=NOW)
        calendars.put(tx, Calendar(name=name, namespace="default", version=1), person="", now=NOW)
        concurrency.set_limit(tx, ("default", name), 1, "")
        no_job = f"absent-{number}"  # a freeze of jobs would hold their launches, without an end
        freezes.add(tx, Freeze(id=name, namespace="default", jobs=no_job, begin=NOW))
        trigger = JobTrigger(
            id=0,
            namespace="default",
            job_id=WIDE,
            source_namespace="default",
            source_id="old",
            run_job_id="old",
            number=number,
            version=0,
            attempt=1,
            status="succeeded",
            state=TriggerState.ARRIVED,
            ended=NOW,
        )
        tx.execute(triggers._ADD, {**msgspec.structs.asdict(trigger), "index": tx.index})
        slot = Slot(slot=NOW + number, decided_at=NOW, outcome=SlotOutcome.SKIPPED, reason="late")
        periodic.add_slot(tx, "default", WIDE, slot)
        told = NotifySettings(events=(NotifyEvent.FAILURE,), command="page")
        key = ("default", WIDE)
        notifications.add(tx, key, told, NotifyEvent.FAILURE, run_id=WIDE, reason="", now=NOW)
        digest = f"{number:064x}"
        payload_files.put(tx, "default", digest, 1, is_complete=True, now=NOW)
        node_pools.put(tx, NodePool(name=f"many-{number}"))
        nodes.put(tx, msgspec.structs.replace(node(), id=name, name=name), "NodeRegistration")
        auth_methods.put(tx, AuthMethod(name=name))
        auth_methods.put_rule(tx, BindingRule(id=name, auth_method=name))
        host_volumes.put(tx, DynamicVolume(namespace="default", id=name, name=name))
        full_store._add(tx, job(name, type="batch", periodic=Periodic(enabled=True, spec="@daily")))
        tx.execute(_LAUNCH, {"id": name, "at": NOW + number // PAGE})
        scaled = [
            group(f"{name}-{place}", scaling=_policy(f"{name}-{place}")) for place in range(3)
        ]
        full_store._add(tx, job(f"scaled.{number}", *scaled))
    addresses = [
        ServiceAddress(
            msgspec.structs.replace(other_objects._service(number, full_store.ALLOC), id=f"{n}"),
            True,
        )
        for n, number in enumerate((0, 1, 1, 1, 1, 2))
    ]
    services.replace_registrations(tx, full_store.ALLOC, addresses)
    tx.execute("UPDATE services SET job_id = :id", {"id": WIDE})
    for task in ("a", "a.b", "b"):
        files = {f"out/{number}.csv": f"{number:064x}" for number in range(FEW)}
        kept_files.replace(tx, full_store.ALLOC, task, files)


def own_indexes(tx: Transaction) -> None:
    """Give the copied deployments the indexes of their rows, as they have in a real store."""
    tx.execute(
        "UPDATE deployments SET document = json_set(document, '$.CreateIndex', create_index)", {}
    )


@pytest.fixture
async def asking(store: Store) -> tuple[Dispatcher, str]:
    await full_store.fill(store, NUMBER, NUMBER)
    await store.write(lambda tx: other_objects.add(tx, NUMBER, full_store.ALLOC, NOW))
    await store.write(add_rest)
    for number in range(1, FEW + 1):
        run = FlowRun(namespace="default", job_id=WIDE, number=number, version=0)
        await store.write(lambda tx, run=run: runs.put(tx, run, None))
    await store.write(own_indexes)
    parts = parts_of(store)
    tasks, door, ids = cast("Any", Runner()), LazyMethods(parts.fences), map(str, count())
    parts = msgspec.structs.replace(parts, tasks=tasks, door=door, ids=ids)
    token = Token(accessor="", policies=("root",), created_at=NOW)
    secret = (await parts.tokens.issue(token)).secret
    return Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event()), secret


async def page(asking: tuple[Dispatcher, str], path: str, query: str) -> tuple[int, object, str]:
    """Return status, body and the token of the next page of a route."""
    parts = path.replace("{", "}").split("}")
    names = {**NAMES, "name": "default"} if "/pool/" in path else NAMES
    parts[1::2] = [names.get(name, "default") for name in parts[1::2]]
    everywhere = "" if len(parts) > 1 else "&namespace=*"
    answer = await ask(asking, "".join(parts), f"{query}{everywhere}{QUERIES.get(path, '')}", b"")
    is_json = answer.headers.get("Content-Type", "") == "application/json"
    body = msgspec.json.decode(answer.body) if is_json and answer.status == 200 else None
    if path == "/v1/services":  # pages count services, elements are namespaces
        body = [service for group in body for service in group["Services"]]
    return answer.status, body, answer.headers.get("X-Service-NextToken", "")


async def test_every_list_has_pages(asking: tuple[Dispatcher, str]) -> None:
    whole, other, faults = set[str](), set[str](), list[str]()
    for path in PATHS:
        status, every, _ = await page(asking, path, "pretty=0")
        if status != 200:
            other.add(path)
            continue
        if not isinstance(every, list):
            continue
        _, _, token = await page(asking, path, "per_page=1")
        if not token:
            whole.add(path)
            continue
        for order in ("false", "true"):
            shown, token = list[object](), ""
            while not shown or token:
                query = f"per_page={PAGE}&reverse={order}&next_token={token}"
                _, part, token = await page(asking, path, query)
                assert isinstance(part, list)
                shown += part
                if len(part) > PAGE or (token and len(part) < PAGE) or len(shown) > len(every):
                    break
            if len(every) <= PAGE or (shown != every and order == "false"):
                faults.append(f"{path}: {len(shown)} of {len(every)}")
            if sorted(map(str, shown)) != sorted(map(str, every)):
                faults.append(f"{path} reverse={order}: {len(shown)} of {len(every)}")
    assert faults == []
    assert whole == WHOLE.keys()
    assert other == OTHER.keys()
