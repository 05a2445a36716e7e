"""The whole API on one screen: path, handler, the right it needs, what a blocking query watches."""

from functools import cache
from typing import TYPE_CHECKING

from daemon.acl.check import (
    ANYONE,
    KNOWN,
    KNOWN_OR_WHY,
    MANAGEMENT,
    WHY,
    on_listing,
    on_namespace,
    on_object,
    on_scope,
    on_variable,
)
from daemon.api.endpoints import ENDPOINTS
from daemon.web.late import LateModule
from daemon.web.reply import Reply
from daemon.web.request import Read, ReadHandler, Request, Route, Stream, Talk, Write
from storage.readers import Snapshot

if TYPE_CHECKING:
    from daemon.api import (
        acl,
        description,
        dispatch,
        history,
        jobs,
        onetime,
        parse,
        plan,
        progress,
        scaling,
        sessions,
        wellknown,
    )
    from daemon.api.cluster import (
        absent,
        agent,
        allocations,
        audit,
        client,
        confinement,
        deployments,
        evaluations,
        events,
        files,
        job_logs,
        keyring,
        logs,
        metrics,
        namespaces,
        node_metadata,
        nodes,
        operator,
        pools,
        search,
        services,
        settings,
        snapshot,
        statuses,
        upkeep,
        variables,
    )
else:  # each is imported when it is first asked for something
    acl = LateModule("daemon.api.acl")
    description = LateModule("daemon.api.description")
    dispatch = LateModule("daemon.api.dispatch")
    history = LateModule("daemon.api.history")
    jobs = LateModule("daemon.api.jobs")
    onetime = LateModule("daemon.api.onetime")
    parse = LateModule("daemon.api.parse")
    plan = LateModule("daemon.api.plan")
    progress = LateModule("daemon.api.progress")
    scaling = LateModule("daemon.api.scaling")
    sessions = LateModule("daemon.api.sessions")
    wellknown = LateModule("daemon.api.wellknown")
    absent = LateModule("daemon.api.cluster.absent")
    agent = LateModule("daemon.api.cluster.agent")
    allocations = LateModule("daemon.api.cluster.allocations")
    audit = LateModule("daemon.api.cluster.audit")
    client = LateModule("daemon.api.cluster.client")
    confinement = LateModule("daemon.api.cluster.confinement")
    deployments = LateModule("daemon.api.cluster.deployments")
    evaluations = LateModule("daemon.api.cluster.evaluations")
    events = LateModule("daemon.api.cluster.events")
    files = LateModule("daemon.api.cluster.files")
    job_logs = LateModule("daemon.api.cluster.job_logs")
    keyring = LateModule("daemon.api.cluster.keyring")
    logs = LateModule("daemon.api.cluster.logs")
    metrics = LateModule("daemon.api.cluster.metrics")
    namespaces = LateModule("daemon.api.cluster.namespaces")
    node_metadata = LateModule("daemon.api.cluster.node_metadata")
    nodes = LateModule("daemon.api.cluster.nodes")
    operator = LateModule("daemon.api.cluster.operator")
    pools = LateModule("daemon.api.cluster.pools")
    search = LateModule("daemon.api.cluster.search")
    services = LateModule("daemon.api.cluster.services")
    settings = LateModule("daemon.api.cluster.settings")
    snapshot = LateModule("daemon.api.cluster.snapshot")
    statuses = LateModule("daemon.api.cluster.statuses")
    upkeep = LateModule("daemon.api.cluster.upkeep")
    variables = LateModule("daemon.api.cluster.variables")

# Rights: any one of the capabilities is enough (spec: ACL lines; golden: acl-cap-*).
LIST = on_listing("list-jobs")
READ = on_namespace("read-job")
READ_ALL = on_listing("read-job")
READ_OBJECT = on_object("read-job")
READ_SCALING = on_namespace("read-job", "read-job-scaling")
LIST_VOLUMES = on_listing("csi-list-volume", "csi-read-volume", "list-jobs", "read-job")
LIST_SCALING = on_listing("list-scaling-policies")
READ_POLICY = on_object("read-scaling-policy")
# Registering asks in the namespace of the job itself, which the body may name.
SUBMIT = on_object("submit-job", "register-job")
PARSE = on_namespace("parse-job", "submit-job", tells_why=WHY)
SUBMIT_HERE = on_namespace("submit-job")
STOP = on_namespace("submit-job", "purge-job", "deregister-job")
SCALE = on_namespace("scale-job", "submit-job")
EVALUATE = on_namespace("submit-job", "evaluate-job")
DISPATCH = on_namespace("dispatch-job")
FORCE = on_namespace("dispatch-job", "submit-job")
PLAN = on_object("submit-job", "plan-job")
REVERT = on_namespace("submit-job", "revert-job")
STABLE = on_namespace("submit-job", "stable-job")
TAG = on_namespace("submit-job", "tag-job-version")
STEER = on_object("submit-job")
LIFECYCLE = on_object("alloc-lifecycle")
LOGS = on_object("read-logs", "read-fs")
LOGS_HERE = on_namespace("read-logs", "read-fs")
FILES = on_object("read-fs")
# Inside a task that is not isolated from its node, the handlers ask for `alloc-node-exec`, too.
EXECUTE = on_object("alloc-exec")
NODE_WRITE = on_scope("node", "write")
NODE_READ = on_scope("node", "read")
AGENT_READ = on_scope("agent", "read", tells_why=WHY)
AGENT_WRITE = on_scope("agent", "write")
OPERATOR_READ = on_scope("operator", "read")
OPERATOR_WRITE = on_scope("operator", "write")

ASKING = frozenset({"POST", "PUT"})  # reads that are asked by a body

_JOBS = ("jobs/{namespace}/{prefix}*", "summaries/{namespace}/{prefix}*")
_JOB = ("jobs/{namespace}/{job_id}",)


@cache
def _description() -> tuple[ReadHandler, ReadHandler]:
    return description.handlers(lambda: ROUTES, ENDPOINTS)


def _document(request: Request, db: Snapshot) -> Reply:
    """Describe the API, in OpenAPI 3.1."""
    return _description()[0](request, db)


def _page(request: Request, db: Snapshot) -> Reply:
    """Show the description of the API."""
    return _description()[1](request, db)


# What is not in this table does not exist.
ROUTES: tuple[Route, ...] = (
    Read("/v1/jobs", jobs.index, LIST, _JOBS, tables=("jobs", "summaries")),
    Write("POST", "/v1/jobs", jobs.register, SUBMIT),
    Write("POST", "/v1/jobs/parse", parse.parse, PARSE, in_any_region=True),
    Write("POST", "/v1/validate/job", jobs.validate, READ_OBJECT),
    Read(
        "/v1/jobs/statuses",
        statuses.index,
        READ_ALL,
        ("jobs/", "allocations/", "deployments/"),
        long=True,
        methods=frozenset({"GET", "POST"}),
    ),
    Read("/v1/jobs/launches", dispatch.coming, LIST, ("periodic",), long=True),
    Read("/v1/job/{job_id}", jobs.read, READ, _JOB, tables=("jobs",)),
    Write("POST", "/v1/job/{job_id}", jobs.update, SUBMIT),
    Write("DELETE", "/v1/job/{job_id}", jobs.stop, STOP),
    Read(
        "/v1/job/{job_id}/versions", history.list_versions, READ, _JOB, any_method=True, long=True
    ),
    Write("POST", "/v1/job/{job_id}/versions/{name}/tag", history.tag, TAG),
    Write("DELETE", "/v1/job/{job_id}/versions/{name}/tag", history.untag, TAG),
    Read("/v1/job/{job_id}/tag", history.no_tag, ANYONE, any_method=True),
    Write("POST", "/v1/job/{job_id}/plan", plan.plan, PLAN),
    Write("POST", "/v1/job/{job_id}/revert", history.revert, REVERT),
    Write("POST", "/v1/job/{job_id}/stable", history.stable, STABLE),
    Read("/v1/job/{job_id}/submission", history.submission, READ),
    Read(
        "/v1/job/{job_id}/summary",
        progress.summary,
        READ,
        ("summaries/{namespace}/{job_id}", *_JOB),
        any_method=True,
    ),
    Read("/v1/job/{job_id}/explain", progress.explain, READ),
    Stream("/v1/job/{job_id}/logs", job_logs.show, LOGS_HERE),
    Read(
        "/v1/job/{job_id}/allocations",
        progress.job_allocations,
        READ,
        ("job-allocations/{namespace}/{job_id}",),
    ),
    Read(
        "/v1/job/{job_id}/evaluations",
        progress.job_evaluations,
        READ,
        ("job-evaluations/{namespace}/{job_id}",),
    ),
    Read(
        "/v1/job/{job_id}/deployments",
        progress.job_deployments,
        READ,
        ("job-deployments/{namespace}/{job_id}",),
    ),
    Read(
        "/v1/job/{job_id}/deployment",
        progress.latest_deployment,
        READ,
        ("job-deployments/{namespace}/{job_id}",),
    ),
    Read(
        "/v1/job/{job_id}/scale",
        scaling.status,
        READ_SCALING,
        (*_JOB, "job-allocations/{namespace}/{job_id}", "scaling/{namespace}/{job_id}"),
    ),
    Write("POST", "/v1/job/{job_id}/scale", scaling.scale, SCALE),
    Read(
        "/v1/job/{job_id}/services",
        progress.services,
        READ,
        ("services/{namespace}/{job_id}", *_JOB),
    ),
    Read("/v1/job/{job_id}/actions", progress.actions, READ),
    Read("/v1/scaling/policies", scaling.policies, LIST_SCALING, ("scaling-policies",)),
    Read("/v1/scaling/policy/{policy_id}", scaling.policy, READ_POLICY, ("scaling-policies",)),
    Write("POST", "/v1/job/{job_id}/evaluate", progress.evaluate, EVALUATE),
    Write("POST", "/v1/job/{job_id}/dispatch", dispatch.dispatch, DISPATCH, hot=True),
    Write("POST", "/v1/job/{job_id}/dispatch/payload", dispatch.dispatch_payload, DISPATCH),
    Write("POST", "/v1/job/{job_id}/periodic/force", dispatch.force, FORCE),
    Read(
        "/v1/job/{job_id}/periodic",
        dispatch.clock,
        READ,
        ("periodic-slots/{namespace}/{job_id}", *_JOB),
    ),
    Write("POST", "/v1/job/{job_id}/periodic/pause", dispatch.pause, SUBMIT_HERE),
    Write("POST", "/v1/job/{job_id}/periodic/resume", dispatch.resume, SUBMIT_HERE),
    Read(
        "/v1/job/{job_id}/periodic/slots",
        dispatch.slots,
        READ,
        ("periodic-slots/{namespace}/{job_id}", *_JOB),
    ),
    Read(
        "/v1/job/{job_id}/notifications",
        dispatch.told,
        READ,
        ("notifications/{namespace}/{job_id}", *_JOB),
    ),
    Talk("/v1/job/{job_id}/action", sessions.run_action, EXECUTE),
    Read("/v1/allocations", allocations.index, READ_ALL, ("allocations/",)),
    Read("/v1/allocation/{alloc_id}", allocations.read, READ_OBJECT, ("allocations/{alloc_id}",)),
    Write("POST", "/v1/allocation/{alloc_id}/stop", allocations.stop, LIFECYCLE),
    Read("/v1/allocation/{alloc_id}/services", allocations.services, READ_OBJECT, ("services/",)),
    Read("/v1/allocation/{alloc_id}/checks", allocations.checks, READ_OBJECT),
    Write("DELETE", "/v1/evaluations", evaluations.remove, MANAGEMENT),
    Read("/v1/evaluations", evaluations.index, READ_ALL, ("evaluations/",)),
    Read("/v1/evaluations/count", evaluations.count, READ_ALL, ("evaluations/",)),
    Read("/v1/evaluation/{eval_id}", evaluations.read, READ_OBJECT, ("evaluations/{eval_id}",)),
    Read(
        "/v1/evaluation/{eval_id}/allocations", evaluations.placed, READ_OBJECT, ("allocations/",)
    ),
    Read("/v1/deployments", deployments.index, READ_ALL, ("deployments/",)),
    Read(
        "/v1/deployment/{deployment_id}",
        deployments.read,
        READ_OBJECT,
        ("deployments/{deployment_id}",),
    ),
    Read(
        "/v1/deployment/allocations/{deployment_id}",
        deployments.placed,
        READ_OBJECT,
        ("allocations/",),
    ),
    Write("POST", "/v1/deployment/promote/{deployment_id}", deployments.promote, STEER),
    Write("POST", "/v1/deployment/fail/{deployment_id}", deployments.fail, STEER),
    Write("POST", "/v1/deployment/pause/{deployment_id}", deployments.pause, STEER),
    Write("POST", "/v1/deployment/unblock/{deployment_id}", deployments.unblock, STEER),
    Write(
        "POST",
        "/v1/deployment/allocation-health/{deployment_id}",
        deployments.allocation_health,
        STEER,
    ),
    Read("/v1/search", search.by_prefix, KNOWN, long=True, methods=ASKING),
    Read("/v1/search/fuzzy", search.fuzzy, KNOWN, long=True, methods=ASKING),
    Read("/v1/nodes", nodes.index, NODE_READ, ("nodes/",)),
    Read("/v1/node/pools", pools.index, KNOWN, ("node_pools", "nodes/")),
    Write("POST", "/v1/node/pools", pools.write, KNOWN),
    Read("/v1/node/pool/{name}", pools.read, KNOWN, ("node_pools", "nodes/")),
    Write("POST", "/v1/node/pool/{name}", pools.write, KNOWN),
    Write("DELETE", "/v1/node/pool/{name}", pools.remove, KNOWN),
    Read("/v1/node/pool/{name}/jobs", pools.pool_jobs, LIST, long=True),
    Read("/v1/node/pool/{name}/nodes", pools.pool_nodes, NODE_READ),
    Write("POST", "/v1/node/pool/{name}/check", pools.check, NODE_WRITE),
    Read("/v1/node/{node_id}", nodes.read, NODE_READ, ("nodes/{node_id}",)),
    Read(
        "/v1/node/{node_id}/allocations",
        nodes.node_allocations,
        NODE_READ,
        ("allocations/",),
    ),
    Write("POST", "/v1/node/{node_id}/evaluate", nodes.evaluate, NODE_WRITE),
    Write("POST", "/v1/node/{node_id}/eligibility", nodes.eligibility, NODE_WRITE),
    Write("POST", "/v1/node/{node_id}/drain", nodes.drain, NODE_WRITE),
    Write("POST", "/v1/node/{node_id}/purge", nodes.purge, NODE_WRITE),
    Write("POST", "/v1/client/allocation/{alloc_id}/restart", client.restart, LIFECYCLE, acts=True),
    Write("POST", "/v1/client/allocation/{alloc_id}/signal", client.signal, LIFECYCLE, acts=True),
    Write("POST", "/v1/client/allocation/{alloc_id}/pause", client.pause, LIFECYCLE, acts=True),
    Read("/v1/services", services.index, READ_ALL, ("services/",)),
    Read("/v1/service/{name}", services.named, READ, ("service/{namespace}/{name}",)),
    Write("DELETE", "/v1/service/{name}/{id}", services.remove, SUBMIT_HERE),
    Talk("/v1/client/allocation/{alloc_id}/exec", sessions.execute, EXECUTE),
    Stream("/v1/client/allocation/{alloc_id}/stats", client.usage, READ_OBJECT),
    Stream("/v1/client/allocation/{alloc_id}/checks", client.checks, READ_OBJECT),
    Stream("/v1/client/allocation/{alloc_id}/gc", client.collect, STEER),
    Write("POST", "/v1/client/allocation/{alloc_id}/gc", client.collect, STEER, acts=True),
    Stream("/v1/client/allocation/{anything}", client.unknown, ANYONE),
    Stream("/v1/client/gc", client.collect_all, NODE_WRITE),
    Write("POST", "/v1/client/gc", client.collect_all, NODE_WRITE, acts=True),
    Stream("/v1/client/stats", client.machine_usage, NODE_READ),
    Read("/v1/client/metadata", node_metadata.read, NODE_READ),
    Write("POST", "/v1/client/metadata", node_metadata.apply, NODE_WRITE),
    Stream("/v1/client/fs/logs/{alloc_id}", logs.logs, LOGS),
    Stream("/v1/client/fs/ls/{alloc_id}", files.entries, FILES),
    Stream("/v1/client/fs/stat/{alloc_id}", files.describe, FILES),
    Stream("/v1/client/fs/cat/{alloc_id}", files.cat, FILES),
    Stream("/v1/client/fs/readat/{alloc_id}", files.read_at, FILES),
    Stream("/v1/client/fs/stream/{alloc_id}", files.stream, FILES),
    Stream("/v1/client/fs/{anything}", files.unknown, ANYONE),
    # Callers without a token are refused by the handlers, unless `metrics_public` opens both.
    Stream("/v1/event/stream", events.stream, KNOWN),
    Stream("/v1/metrics", metrics.show, KNOWN),
    Read("/v1/agent/self", agent.self_, AGENT_READ),
    Read("/v1/agent/settings", settings.index, AGENT_READ),
    Read("/v1/agent/health", agent.health, ANYONE),
    Read("/v1/agent/members", agent.members, NODE_READ),
    Read("/v1/agent/servers", agent.servers, AGENT_READ),
    Write("POST", "/v1/agent/servers", agent.set_servers, AGENT_WRITE),
    Write("POST", "/v1/agent/join", agent.join, AGENT_WRITE),
    Write("POST", "/v1/agent/force-leave", agent.force_leave, AGENT_WRITE),
    Read("/v1/agent/schedulers", agent.schedulers, AGENT_READ),
    Read("/v1/agent/schedulers/config", agent.scheduler_workers, AGENT_READ),
    Write("POST", "/v1/agent/schedulers/config", agent.set_scheduler_workers, AGENT_WRITE),
    Stream("/v1/agent/monitor", agent.monitor, AGENT_READ),
    Read("/v1/status/leader", agent.leader, ANYONE),
    Read("/v1/status/peers", agent.peers, ANYONE),
    Read("/v1/regions", agent.regions, ANYONE),
    Read("/.well-known/jwks.json", wellknown.keys, ANYONE),
    Read("/.well-known/openid-configuration", wellknown.discovery, ANYONE),
    Read("/v1/operator/keyring/keys", keyring.index, OPERATOR_READ, ("signing-keys",)),
    Write("POST", "/v1/operator/keyring/rotate", keyring.rotate, OPERATOR_WRITE),
    Write("DELETE", "/v1/operator/keyring/key/{key_id}", keyring.remove, OPERATOR_WRITE),
    Read("/v1/operator/keyring/{anything}", keyring.unknown, ANYONE, any_method=True),
    Read("/v1/operator/faults", operator.faults, OPERATOR_READ),
    Stream("/v1/operator/confinement", confinement.show, OPERATOR_READ),
    Read("/v1/operator/scheduler/configuration", operator.scheduler, OPERATOR_READ),
    Write("POST", "/v1/operator/scheduler/configuration", operator.set_scheduler, OPERATOR_WRITE),
    Read("/v1/operator/raft/configuration", operator.raft_configuration, OPERATOR_READ),
    Write("DELETE", "/v1/operator/raft/peer", operator.remove_peer, OPERATOR_WRITE),
    Write("POST", "/v1/operator/raft/transfer-leadership", operator.refuse, OPERATOR_WRITE),
    Read("/v1/operator/autopilot/configuration", operator.autopilot_configuration, OPERATOR_READ),
    Write("POST", "/v1/operator/autopilot/configuration", operator.refuse, OPERATOR_WRITE),
    Read("/v1/operator/autopilot/health", operator.autopilot_health, OPERATOR_READ),
    Stream("/v1/operator/snapshot", snapshot.save, MANAGEMENT),
    Write("POST", "/v1/operator/snapshot", snapshot.restore, MANAGEMENT),
    Read("/v1/operator/license", operator.license_, OPERATOR_READ),
    Write("POST", "/v1/operator/license", operator.put_license, OPERATOR_WRITE),
    Write("POST", "/v1/system/gc", upkeep.collect_garbage, MANAGEMENT),
    Write("POST", "/v1/system/reconcile/summaries", upkeep.reconcile_summaries, MANAGEMENT),
    Read("/v1/operator/audit", audit.index, MANAGEMENT, ("audit",)),
    Read("/v1/vars", variables.index, KNOWN, ("variables/{namespace}/{prefix}*",)),
    Read(
        "/v1/var/{path}",
        variables.read,
        on_variable("read"),
        ("variables/{namespace}/{path}",),
        shows_secrets=True,
    ),
    Write("POST", "/v1/var/{path}", variables.write, on_variable("write")),
    Write("DELETE", "/v1/var/{path}", variables.remove, on_variable("destroy")),
    Write("POST", "/v1/acl/bootstrap", acl.bootstrap, ANYONE),
    Read("/v1/acl/tokens", acl.list_tokens, MANAGEMENT, ("tokens/",)),
    Read("/v1/acl/token/self", acl.own_token, KNOWN_OR_WHY),
    Write("POST", "/v1/acl/token", acl.create_token, MANAGEMENT),
    Write("POST", "/v1/acl/token/onetime", onetime.make, KNOWN),
    Write("POST", "/v1/acl/token/onetime/exchange", onetime.exchange, ANYONE),
    Read(
        "/v1/acl/token/{accessor}",
        acl.read_token,
        KNOWN,
        ("tokens/{accessor}",),
        shows_secrets=True,
    ),
    Write("POST", "/v1/acl/token/{accessor}", acl.update_token, MANAGEMENT),
    Write("DELETE", "/v1/acl/token/{accessor}", acl.delete_token, MANAGEMENT),
    Read("/v1/acl/policies", acl.list_policies, KNOWN, ("policies/",)),
    Read("/v1/acl/policy/{name}", acl.read_policy, KNOWN, ("policies/{name}",)),
    Write("POST", "/v1/acl/policy/{name}", acl.put_policy, MANAGEMENT),
    Write("DELETE", "/v1/acl/policy/{name}", acl.delete_policy, MANAGEMENT),
    Write("POST", "/v1/acl/explain", acl.explain_request, MANAGEMENT),
    Read("/v1/acl/roles", acl.list_roles, KNOWN, ("acl_roles/",)),
    Write("POST", "/v1/acl/role", acl.create_role, MANAGEMENT),
    Read("/v1/acl/role/name/{name}", acl.read_role_by_name, KNOWN, ("acl_roles/",)),
    Read("/v1/acl/role/{role_id}", acl.read_role, KNOWN, ("acl_roles/{role_id}",)),
    Write("POST", "/v1/acl/role/{role_id}", acl.update_role, MANAGEMENT),
    Write("DELETE", "/v1/acl/role/{role_id}", acl.delete_role, MANAGEMENT),
    Read("/v1/namespaces", namespaces.index, KNOWN, ("namespaces/",)),
    Write("POST", "/v1/namespace", namespaces.create, MANAGEMENT),
    Read("/v1/namespace/{name}", namespaces.read, KNOWN, ("namespaces/{name}",)),
    Write("POST", "/v1/namespace/{name}", namespaces.update, MANAGEMENT),
    Write("DELETE", "/v1/namespace/{name}", namespaces.remove, MANAGEMENT),
    Read("/v1/volumes", absent.nothing, LIST_VOLUMES),
    Read("/v1/volume/csi/{volume_id}", absent.unknown_volume, LIST_VOLUMES),
    Read("/v1/volume/host/{volume_id}", absent.unknown_volume, LIST_VOLUMES),
    Read("/v1/plugins", absent.nothing, on_scope("plugin", "list")),
    Read("/v1/plugin/csi/{plugin_id}", absent.unknown_plugin, on_scope("plugin", "read")),
    Read("/v1/acl/auth-methods", absent.nothing, ANYONE),
    Read("/v1/acl/binding-rules", absent.nothing, MANAGEMENT),
    *(
        Read(path, absent.not_offered, KNOWN, any_method=True)
        for path in (
            "/v1/sentinel/policies",
            "/v1/sentinel/policy/{name}",
            "/v1/quotas",
            "/v1/quota",
            "/v1/quota/{name}",
            "/v1/quota-usages",
            "/v1/recommendations",
            "/v1/recommendation/{id}",
        )
    ),
    Read("/v1/openapi.json", _document, ANYONE, long=True),
    Read("/v1/openapi", _page, ANYONE, long=True),
)
