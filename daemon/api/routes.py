"""The jobs API in one table: path, handler, capability, and topics of a blocking query."""

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
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.lazy import LazyModule
from daemon.web.reply import HandlerReply
from daemon.web.request import (
    ReadHandler,
    ReadRoute,
    Request,
    Route,
    StreamRoute,
    WebSocketRoute,
    WriteRoute,
)
from storage.read_pool import ReadSnapshot

if TYPE_CHECKING:
    from daemon.api import (
        acl,
        auth_methods,
        bulk_dispatch,
        calendars,
        concurrency,
        definition,
        dispatch,
        exec_sessions,
        flows,
        freezes,
        job_status,
        job_versions,
        jobs,
        onetime,
        openapi_page,
        parse,
        payload_files,
        plan,
        scaling,
        triggers,
        wellknown,
    )
    from daemon.api.cluster import (
        agent,
        allocations,
        audit,
        client,
        confinement,
        deployments,
        evaluations,
        events,
        files,
        host,
        host_volumes,
        job_log_views,
        job_logs,
        kept_files,
        keyring,
        log_views,
        logs,
        metrics,
        namespaces,
        node_identity,
        node_metadata,
        nodes,
        notify,
        operator,
        pools,
        profiles,
        search,
        services,
        settings,
        snapshot,
        statuses,
        system,
        unsupported,
        usage_history,
        variables,
    )
else:  # each module is imported at its first request
    acl = LazyModule("daemon.api.acl")
    bulk_dispatch = LazyModule("daemon.api.bulk_dispatch")
    calendars = LazyModule("daemon.api.calendars")
    auth_methods = LazyModule("daemon.api.auth_methods")
    definition = LazyModule("daemon.api.definition")
    openapi_page = LazyModule("daemon.api.openapi_page")
    dispatch = LazyModule("daemon.api.dispatch")
    job_versions = LazyModule("daemon.api.job_versions")
    jobs = LazyModule("daemon.api.jobs")
    onetime = LazyModule("daemon.api.onetime")
    parse = LazyModule("daemon.api.parse")
    payload_files = LazyModule("daemon.api.payload_files")
    plan = LazyModule("daemon.api.plan")
    flows = LazyModule("daemon.api.flows")
    freezes = LazyModule("daemon.api.freezes")
    job_status = LazyModule("daemon.api.job_status")
    scaling = LazyModule("daemon.api.scaling")
    triggers = LazyModule("daemon.api.triggers")
    exec_sessions = LazyModule("daemon.api.exec_sessions")
    concurrency = LazyModule("daemon.api.concurrency")
    wellknown = LazyModule("daemon.api.wellknown")
    unsupported = LazyModule("daemon.api.cluster.unsupported")
    usage_history = LazyModule("daemon.api.cluster.usage_history")
    agent = LazyModule("daemon.api.cluster.agent")
    allocations = LazyModule("daemon.api.cluster.allocations")
    audit = LazyModule("daemon.api.cluster.audit")
    client = LazyModule("daemon.api.cluster.client")
    confinement = LazyModule("daemon.api.cluster.confinement")
    deployments = LazyModule("daemon.api.cluster.deployments")
    evaluations = LazyModule("daemon.api.cluster.evaluations")
    events = LazyModule("daemon.api.cluster.events")
    files = LazyModule("daemon.api.cluster.files")
    job_log_views = LazyModule("daemon.api.cluster.job_log_views")
    job_logs = LazyModule("daemon.api.cluster.job_logs")
    kept_files = LazyModule("daemon.api.cluster.kept_files")
    keyring = LazyModule("daemon.api.cluster.keyring")
    log_views = LazyModule("daemon.api.cluster.log_views")
    logs = LazyModule("daemon.api.cluster.logs")
    metrics = LazyModule("daemon.api.cluster.metrics")
    host = LazyModule("daemon.api.cluster.host")
    host_volumes = LazyModule("daemon.api.cluster.host_volumes")
    namespaces = LazyModule("daemon.api.cluster.namespaces")
    node_identity = LazyModule("daemon.api.cluster.node_identity")
    node_metadata = LazyModule("daemon.api.cluster.node_metadata")
    nodes = LazyModule("daemon.api.cluster.nodes")
    notify = LazyModule("daemon.api.cluster.notify")
    operator = LazyModule("daemon.api.cluster.operator")
    pools = LazyModule("daemon.api.cluster.pools")
    profiles = LazyModule("daemon.api.cluster.profiles")
    search = LazyModule("daemon.api.cluster.search")
    services = LazyModule("daemon.api.cluster.services")
    settings = LazyModule("daemon.api.cluster.settings")
    snapshot = LazyModule("daemon.api.cluster.snapshot")
    statuses = LazyModule("daemon.api.cluster.statuses")
    system = LazyModule("daemon.api.cluster.system")
    variables = LazyModule("daemon.api.cluster.variables")

# Any one of the capabilities is sufficient (Nomad's recorded responses: acl-cap-*).
LIST = on_listing("list-jobs")
READ = on_namespace("read-job")
READ_ALL = on_listing("read-job")
READ_OBJECT = on_object("read-job")
READ_SCALING = on_namespace("read-job", "read-job-scaling")
LIST_VOLUMES = on_listing(
    "csi-list-volume", "csi-read-volume", "host-volume-read", "list-jobs", "read-job"
)
LIST_SCALING = on_listing("list-scaling-policies")
READ_POLICY = on_object("read-scaling-policy")
# A registration needs the capability in the job's namespace, which the body may name.
SUBMIT = on_object("submit-job", "register-job")
PARSE = on_namespace("parse-job", "submit-job", tells_why=WHY)
SUBMIT_HERE = on_namespace("submit-job")
STOP = on_namespace("submit-job", "purge-job", "deregister-job")
SCALE = on_namespace("scale-job", "submit-job")
EVALUATE = on_namespace("submit-job", "evaluate-job")
DISPATCH = on_namespace("dispatch-job")
FORCE = on_namespace("dispatch-job", "submit-job")
PAYLOAD = on_namespace("dispatch-job", "submit-job")
PLAN = on_object("submit-job", "plan-job")
REVERT = on_namespace("submit-job", "revert-job")
STABLE = on_namespace("submit-job", "stable-job")
TAG = on_namespace("submit-job", "tag-job-version")
STEER = on_object("submit-job")
STEER_RUN = on_namespace("submit-job", "steer-run")
APPROVE = on_namespace("approve-run")  # a person who submits a job may not approve its steps
# The handlers check the namespace of the freeze; all namespaces need `operator:write`.
FREEZE = on_object("freeze-jobs")
WRITE_CALENDAR = on_namespace("write-calendar")
LIFECYCLE = on_object("alloc-lifecycle")
LOGS = on_object("read-logs", "read-fs")
LOGS_HERE = on_namespace("read-logs", "read-fs")
FILES = on_object("read-fs")
# For a task that is not isolated from its node, the handlers also require `alloc-node-exec`.
EXECUTE = on_object("alloc-exec")
NODE_WRITE = on_scope("node", "write")
NODE_READ = on_scope("node", "read")
AGENT_READ = on_scope("agent", "read", tells_why=WHY)
AGENT_WRITE = on_scope("agent", "write")
OPERATOR_READ = on_scope("operator", "read")
OPERATOR_WRITE = on_scope("operator", "write")

ASKING = frozenset({"POST", "PUT"})  # reads with a body

_JOBS = ("jobs/{namespace}/{prefix}*", "summaries/{namespace}/{prefix}*")
_JOB = ("jobs/{namespace}/{job_id}",)
_RUN = ("runs/{namespace}/{job_id}", "job-allocations/{namespace}/{job_id}")
_CALENDAR = ("calendars/{namespace}/{name}",)
# With its child jobs, whose names begin with the parent's name.
_STATE = (
    "jobs/{namespace}/{job_id}*",
    "job-allocations/{namespace}/{job_id}*",
    "job-evaluations/{namespace}/{job_id}*",
    "job-deployments/{namespace}/{job_id}*",
)


@cache
def _description() -> tuple[ReadHandler, ReadHandler]:
    return openapi_page.handlers(lambda: ROUTES, ENDPOINTS)


def _document(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Describe the API, in OpenAPI 3.1."""
    return _description()[0](request, db)


def _page(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the description of the API."""
    return _description()[1](request, db)


# Paths that are not in this table do not exist.
ROUTES: tuple[Route, ...] = (
    ReadRoute("/v1/jobs", jobs.index, LIST, _JOBS, tables=("jobs", "summaries")),
    WriteRoute("POST", "/v1/jobs", jobs.register, SUBMIT, hot=True),
    WriteRoute("POST", "/v1/jobs/parse", parse.parse, PARSE, in_any_region=True),
    WriteRoute("POST", "/v1/jobs/graph", flows.draw, PARSE),
    WriteRoute("POST", "/v1/validate/job", jobs.validate, READ_OBJECT),
    WriteRoute("POST", "/v1/validate/job/examine", jobs.examine, READ_OBJECT),
    ReadRoute(
        "/v1/jobs/statuses",
        statuses.index,
        READ_ALL,
        ("jobs/", "allocations/", "deployments/"),
        long=True,
        methods=frozenset({"GET", "POST"}),
    ),
    ReadRoute(
        "/v1/jobs/launches", dispatch.upcoming_launches, LIST, ("periodic", "freezes"), long=True
    ),
    ReadRoute("/v1/job/{job_id}", jobs.read, READ, _JOB, tables=("jobs",), is_definition=True),
    WriteRoute("POST", "/v1/job/{job_id}", jobs.update, SUBMIT, hot=True),
    WriteRoute("DELETE", "/v1/job/{job_id}", jobs.deregister_job, STOP),
    ReadRoute(
        "/v1/job/{job_id}/versions",
        job_versions.list_versions,
        READ,
        _JOB,
        any_method=True,
        long=True,
        is_definition=True,
    ),
    WriteRoute("POST", "/v1/job/{job_id}/versions/{name}/tag", job_versions.tag, TAG),
    WriteRoute("DELETE", "/v1/job/{job_id}/versions/{name}/tag", job_versions.untag, TAG),
    ReadRoute("/v1/job/{job_id}/tag", job_versions.tag_not_supported, ANYONE, any_method=True),
    WriteRoute("POST", "/v1/job/{job_id}/plan", plan.plan, PLAN, shows_jobs=True),
    WriteRoute("POST", "/v1/job/{job_id}/revert", job_versions.revert, REVERT),
    WriteRoute("POST", "/v1/job/{job_id}/stable", job_versions.set_stable, STABLE),
    ReadRoute("/v1/job/{job_id}/submission", job_versions.submission, READ, is_definition=True),
    ReadRoute(
        "/v1/job/{job_id}/definition", definition.definition, READ, long=True, is_definition=True
    ),
    ReadRoute(
        "/v1/job/{job_id}/summary",
        job_status.summary,
        READ,
        ("summaries/{namespace}/{job_id}", *_JOB),
        any_method=True,
    ),
    ReadRoute("/v1/concurrency", concurrency.index, READ_ALL, ("queues/",)),
    ReadRoute("/v1/concurrency/{name}", concurrency.read, READ, ("queues/{namespace}/{name}",)),
    WriteRoute("POST", "/v1/concurrency/{name}", concurrency.put, SUBMIT_HERE),
    WriteRoute("DELETE", "/v1/concurrency/{name}", concurrency.delete, SUBMIT_HERE),
    ReadRoute("/v1/freezes", freezes.index, LIST, ("freezes",)),
    WriteRoute("POST", "/v1/freeze", freezes.make, FREEZE),
    WriteRoute("DELETE", "/v1/freeze/{freeze_id}", freezes.thaw, FREEZE),
    ReadRoute("/v1/runs", flows.list_runs, LIST, ("runs/",)),
    ReadRoute("/v1/job/{job_id}/run", flows.read_run, READ, _RUN),
    ReadRoute("/v1/job/{job_id}/run/outputs", flows.read_outputs, READ, _RUN, long=True),
    WriteRoute("POST", "/v1/job/{job_id}/run/cancel", flows.cancel, STEER_RUN),
    WriteRoute("POST", "/v1/job/{job_id}/run/skip", flows.skip, STEER_RUN),
    WriteRoute("POST", "/v1/job/{job_id}/run/accept", flows.accept, STEER_RUN),
    WriteRoute("POST", "/v1/job/{job_id}/run/rerun", flows.rerun, STEER_RUN),
    WriteRoute("POST", "/v1/job/{job_id}/run/step", flows.run_step, STEER_RUN),
    WriteRoute("POST", "/v1/job/{job_id}/run/approve", flows.approve, APPROVE),
    WriteRoute("POST", "/v1/job/{job_id}/run/reject", flows.reject, APPROVE),
    ReadRoute("/v1/job/{job_id}/graph", flows.graph_of_job, READ, _JOB, long=True),
    ReadRoute(
        "/v1/job/{job_id}/triggers",
        triggers.list_triggers,
        READ,
        ("triggers/{namespace}/{job_id}", *_JOB),
        long=True,
    ),
    ReadRoute("/v1/job/{job_id}/links", triggers.show_links, READ, ("triggers/", *_JOB)),
    ReadRoute("/v1/calendars", calendars.index, READ_ALL, ("calendars/",)),
    ReadRoute("/v1/calendar/{name}", calendars.read, READ, _CALENDAR),
    WriteRoute("POST", "/v1/calendar/{name}", calendars.write, WRITE_CALENDAR),
    WriteRoute("DELETE", "/v1/calendar/{name}", calendars.remove, WRITE_CALENDAR),
    ReadRoute("/v1/calendar/{name}/days", calendars.days, READ, _CALENDAR, long=True),
    ReadRoute("/v1/calendar/{name}/versions", calendars.list_versions, READ, _CALENDAR, long=True),
    WriteRoute("POST", "/v1/calendar/{name}/import", calendars.import_file, WRITE_CALENDAR),
    ReadRoute("/v1/job/{job_id}/explain", job_status.explain, READ),
    ReadRoute("/v1/job/{job_id}/state", job_status.state, READ, _STATE, long=True),
    ReadRoute("/v1/job/{job_id}/runs", job_status.runs, READ, _STATE, long=True),
    ReadRoute("/v1/job/{job_id}/calendar", job_status.calendar, READ, _STATE, long=True),
    StreamRoute("/v1/job/{job_id}/logs", job_logs.stream_job_logs, LOGS_HERE),
    StreamRoute("/v1/job/{job_id}/logs/lines", job_log_views.lines, LOGS_HERE),
    StreamRoute("/v1/job/{job_id}/logs/search", job_log_views.search, LOGS_HERE),
    ReadRoute(
        "/v1/job/{job_id}/allocations",
        job_status.job_allocations,
        READ,
        ("job-allocations/{namespace}/{job_id}",),
    ),
    ReadRoute(
        "/v1/job/{job_id}/evaluations",
        job_status.job_evaluations,
        READ,
        ("job-evaluations/{namespace}/{job_id}",),
    ),
    ReadRoute(
        "/v1/job/{job_id}/deployments",
        job_status.job_deployments,
        READ,
        ("job-deployments/{namespace}/{job_id}",),
    ),
    ReadRoute(
        "/v1/job/{job_id}/deployment",
        job_status.newest_deployment,
        READ,
        ("job-deployments/{namespace}/{job_id}",),
    ),
    ReadRoute(
        "/v1/job/{job_id}/scale",
        scaling.status,
        READ_SCALING,
        (*_JOB, "job-allocations/{namespace}/{job_id}", "scaling/{namespace}/{job_id}"),
    ),
    WriteRoute("POST", "/v1/job/{job_id}/scale", scaling.scale, SCALE),
    ReadRoute(
        "/v1/job/{job_id}/services",
        job_status.services,
        READ,
        ("services/{namespace}/{job_id}", *_JOB),
    ),
    ReadRoute("/v1/job/{job_id}/actions", job_status.actions, READ),
    ReadRoute("/v1/scaling/policies", scaling.policies, LIST_SCALING, ("scaling-policies",)),
    ReadRoute("/v1/scaling/policy/{policy_id}", scaling.policy, READ_POLICY, ("scaling-policies",)),
    WriteRoute("POST", "/v1/job/{job_id}/evaluate", job_status.evaluate, EVALUATE),
    WriteRoute("POST", "/v1/job/{job_id}/dispatch", dispatch.dispatch, DISPATCH, hot=True),
    WriteRoute("POST", "/v1/job/{job_id}/dispatch/payload", dispatch.dispatch_payload, DISPATCH),
    ReadRoute("/v1/payload/{digest}", payload_files.show, PAYLOAD),
    WriteRoute("POST", "/v1/payload/{digest}", payload_files.receive, PAYLOAD),
    WriteRoute(
        "POST",
        "/v1/job/{job_id}/dispatch/bulk",
        bulk_dispatch.dispatch_bulk,
        DISPATCH,
        acts=True,  # most of its writes happen after the audit entry
    ),
    WriteRoute("POST", "/v1/job/{job_id}/periodic/force", dispatch.force_periodic, FORCE),
    ReadRoute(
        "/v1/job/{job_id}/periodic",
        dispatch.periodic_schedule,
        READ,
        ("periodic-slots/{namespace}/{job_id}", "periodic", *_JOB),
        long=True,  # if a calendar is rarely open, many days are searched
    ),
    WriteRoute("POST", "/v1/job/{job_id}/periodic/pause", dispatch.pause_periodic, SUBMIT_HERE),
    WriteRoute("POST", "/v1/job/{job_id}/periodic/resume", dispatch.resume_periodic, SUBMIT_HERE),
    ReadRoute(
        "/v1/job/{job_id}/periodic/slots",
        dispatch.list_slots,
        READ,
        ("periodic-slots/{namespace}/{job_id}", *_JOB),
    ),
    ReadRoute(
        "/v1/job/{job_id}/notifications",
        dispatch.list_notifications,
        READ,
        ("notifications/{namespace}/{job_id}", *_JOB),
    ),
    WebSocketRoute("/v1/job/{job_id}/action", exec_sessions.run_action, EXECUTE),
    ReadRoute("/v1/allocations", allocations.list_allocations, READ_ALL, ("allocations/",)),
    ReadRoute(
        "/v1/allocation/{alloc_id}",
        allocations.read_allocation,
        READ_OBJECT,
        ("allocations/{alloc_id}",),
    ),
    WriteRoute("POST", "/v1/allocation/{alloc_id}/stop", allocations.stop_alloc, LIFECYCLE),
    ReadRoute(
        "/v1/allocation/{alloc_id}/services", allocations.services, READ_OBJECT, ("services/",)
    ),
    ReadRoute("/v1/allocation/{alloc_id}/kept", kept_files.index, FILES),
    StreamRoute("/v1/allocation/{alloc_id}/kept/file", kept_files.read, FILES),
    ReadRoute("/v1/allocation/{alloc_id}/error", allocations.error, READ_OBJECT),
    ReadRoute("/v1/allocation/{alloc_id}/checks", allocations.checks, READ_OBJECT),
    WriteRoute("DELETE", "/v1/evaluations", evaluations.remove, MANAGEMENT),
    ReadRoute("/v1/evaluations", evaluations.index, READ_ALL, ("evaluations/",)),
    ReadRoute("/v1/evaluations/count", evaluations.count, READ_ALL, ("evaluations/",)),
    ReadRoute(
        "/v1/evaluation/{eval_id}", evaluations.read, READ_OBJECT, ("evaluations/{eval_id}",)
    ),
    ReadRoute(
        "/v1/evaluation/{eval_id}/allocations", evaluations.placed, READ_OBJECT, ("allocations/",)
    ),
    ReadRoute("/v1/deployments", deployments.index, READ_ALL, ("deployments/",)),
    ReadRoute(
        "/v1/deployment/{deployment_id}",
        deployments.read,
        READ_OBJECT,
        ("deployments/{deployment_id}",),
    ),
    ReadRoute(
        "/v1/deployment/allocations/{deployment_id}",
        deployments.placed,
        READ_OBJECT,
        ("allocations/",),
    ),
    WriteRoute("POST", "/v1/deployment/promote/{deployment_id}", deployments.promote, STEER),
    WriteRoute("POST", "/v1/deployment/fail/{deployment_id}", deployments.fail, STEER),
    WriteRoute("POST", "/v1/deployment/pause/{deployment_id}", deployments.pause, STEER),
    WriteRoute("POST", "/v1/deployment/unblock/{deployment_id}", deployments.unblock, STEER),
    WriteRoute(
        "POST",
        "/v1/deployment/allocation-health/{deployment_id}",
        deployments.allocation_health,
        STEER,
    ),
    ReadRoute("/v1/search", search.by_prefix, KNOWN, long=True, methods=ASKING),
    ReadRoute("/v1/search/fuzzy", search.fuzzy, KNOWN, long=True, methods=ASKING, searches=True),
    ReadRoute("/v1/nodes", nodes.index, NODE_READ, ("nodes/",)),
    ReadRoute("/v1/node/pools", pools.index, KNOWN, ("node_pools", "nodes/")),
    WriteRoute("POST", "/v1/node/pools", pools.write, KNOWN),
    ReadRoute("/v1/node/pool/{name}", pools.read, KNOWN, ("node_pools", "nodes/")),
    WriteRoute("POST", "/v1/node/pool/{name}", pools.write, KNOWN),
    WriteRoute("DELETE", "/v1/node/pool/{name}", pools.remove, KNOWN),
    ReadRoute("/v1/node/pool/{name}/jobs", pools.pool_jobs, LIST, long=True),
    ReadRoute("/v1/node/pool/{name}/nodes", pools.pool_nodes, NODE_READ),
    WriteRoute("POST", "/v1/node/pool/{name}/check", pools.check, NODE_WRITE),
    ReadRoute("/v1/node/{node_id}", nodes.read, NODE_READ, ("nodes/{node_id}",)),
    ReadRoute(
        "/v1/node/{node_id}/allocations",
        nodes.node_allocations,
        NODE_READ,
        ("allocations/",),
    ),
    ReadRoute("/v1/node/{node_id}/hosts", nodes.hosted_tasks, NODE_READ),
    WriteRoute("POST", "/v1/node/{node_id}/evaluate", nodes.evaluate, NODE_WRITE),
    WriteRoute("POST", "/v1/node/{node_id}/eligibility", nodes.eligibility, NODE_WRITE),
    WriteRoute("POST", "/v1/node/{node_id}/drain", nodes.drain, NODE_WRITE),
    WriteRoute("POST", "/v1/node/{node_id}/purge", nodes.purge, NODE_WRITE),
    WriteRoute(
        "POST", "/v1/client/allocation/{alloc_id}/restart", client.restart, LIFECYCLE, acts=True
    ),
    WriteRoute(
        "POST", "/v1/client/allocation/{alloc_id}/signal", client.signal, LIFECYCLE, acts=True
    ),
    WriteRoute(
        "POST", "/v1/client/allocation/{alloc_id}/pause", client.pause, LIFECYCLE, acts=True
    ),
    ReadRoute("/v1/services", services.index, READ_ALL, ("services/",)),
    ReadRoute("/v1/service/{name}", services.named, READ, ("service/{namespace}/{name}",)),
    WriteRoute("DELETE", "/v1/service/{name}/{id}", services.remove, SUBMIT_HERE),
    WebSocketRoute("/v1/client/allocation/{alloc_id}/exec", exec_sessions.execute, EXECUTE),
    StreamRoute("/v1/client/allocation/{alloc_id}/stats", client.allocation_stats, READ_OBJECT),
    StreamRoute("/v1/client/allocation/{alloc_id}/checks", client.checks, READ_OBJECT),
    StreamRoute("/v1/client/allocation/{alloc_id}/gc", client.gc_allocation, STEER, acts=True),
    WriteRoute(
        "POST", "/v1/client/allocation/{alloc_id}/gc", client.gc_allocation, STEER, acts=True
    ),
    StreamRoute("/v1/client/allocation/{anything}", client.allocation_not_found, ANYONE),
    StreamRoute("/v1/client/gc", client.gc_all, NODE_WRITE, acts=True),
    WriteRoute("POST", "/v1/client/gc", client.gc_all, NODE_WRITE, acts=True),
    StreamRoute("/v1/node/{node_id}/history", usage_history.of_node, NODE_READ),
    StreamRoute("/v1/job/{job_id}/history", usage_history.of_job, READ),
    StreamRoute("/v1/allocation/{alloc_id}/history", usage_history.of_allocation, READ_OBJECT),
    StreamRoute("/v1/client/usage", client.usages, READ_ALL),
    StreamRoute("/v1/client/stats", client.host_stats, NODE_READ),
    ReadRoute("/v1/client/identity", node_identity.read, NODE_READ),
    WriteRoute("POST", "/v1/client/identity/renew", node_identity.renew, NODE_WRITE),
    ReadRoute("/v1/client/metadata", node_metadata.read, NODE_READ),
    WriteRoute("POST", "/v1/client/metadata", node_metadata.apply, NODE_WRITE),
    StreamRoute("/v1/client/fs/logs/{alloc_id}", logs.logs, LOGS),
    StreamRoute("/v1/client/fs/lines/{alloc_id}", log_views.lines, LOGS),
    StreamRoute("/v1/client/fs/search/{alloc_id}", log_views.search, LOGS),
    StreamRoute("/v1/client/fs/ls/{alloc_id}", files.list_dir, FILES),
    StreamRoute("/v1/client/fs/stat/{alloc_id}", files.stat_file, FILES),
    StreamRoute("/v1/client/fs/cat/{alloc_id}", files.read_file, FILES),
    StreamRoute("/v1/client/fs/readat/{alloc_id}", files.read_file_at, FILES),
    StreamRoute("/v1/client/fs/stream/{alloc_id}", files.stream_file, FILES),
    StreamRoute("/v1/client/fs/{anything}", files.file_not_found, ANYONE),
    # The handlers reject callers without a token, unless `metrics_public` is set.
    StreamRoute("/v1/event/stream", events.stream, KNOWN),
    StreamRoute("/v1/metrics", metrics.show, KNOWN),
    ReadRoute("/v1/agent/self", agent.agent_self, AGENT_READ),
    ReadRoute("/v1/agent/settings", settings.index, AGENT_READ),
    ReadRoute("/v1/agent/health", agent.health, ANYONE),
    ReadRoute("/v1/agent/members", agent.members, NODE_READ),
    ReadRoute("/v1/agent/servers", agent.servers, AGENT_READ),
    WriteRoute("POST", "/v1/agent/servers", agent.set_servers, AGENT_WRITE),
    WriteRoute("POST", "/v1/agent/join", agent.join, AGENT_WRITE),
    WriteRoute("POST", "/v1/agent/force-leave", agent.force_leave, AGENT_WRITE),
    ReadRoute("/v1/agent/schedulers", agent.schedulers, AGENT_READ),
    ReadRoute("/v1/agent/schedulers/config", agent.scheduler_workers, AGENT_READ),
    WriteRoute("POST", "/v1/agent/schedulers/config", agent.set_scheduler_workers, AGENT_WRITE),
    StreamRoute("/v1/agent/monitor", agent.monitor, AGENT_READ),
    StreamRoute("/v1/agent/host", host.host, AGENT_READ),
    StreamRoute("/v1/agent/pprof/cmdline", profiles.command, AGENT_WRITE),
    StreamRoute("/v1/agent/pprof/{profile}", profiles.profile, AGENT_WRITE),
    ReadRoute("/v1/status/leader", agent.leader, ANYONE),
    ReadRoute("/v1/status/peers", agent.peers, ANYONE),
    ReadRoute("/v1/regions", agent.regions, ANYONE),
    ReadRoute("/.well-known/jwks.json", wellknown.keys, ANYONE),
    ReadRoute("/.well-known/openid-configuration", wellknown.discovery, ANYONE),
    ReadRoute("/v1/operator/keyring/keys", keyring.index, OPERATOR_READ, ("signing-keys",)),
    WriteRoute("POST", "/v1/operator/keyring/rotate", keyring.rotate, OPERATOR_WRITE),
    WriteRoute("DELETE", "/v1/operator/keyring/key/{key_id}", keyring.remove, OPERATOR_WRITE),
    ReadRoute("/v1/operator/keyring/{anything}", keyring.unknown, ANYONE, any_method=True),
    ReadRoute("/v1/operator/faults", operator.faults, OPERATOR_READ),
    WriteRoute("POST", "/v1/operator/faults/release", operator.release_fault, OPERATOR_WRITE),
    WriteRoute("POST", "/v1/operator/notify/test", notify.test, OPERATOR_WRITE, acts=True),
    StreamRoute("/v1/operator/confinement", confinement.show, OPERATOR_READ),
    ReadRoute("/v1/operator/scheduler/configuration", operator.scheduler, OPERATOR_READ),
    WriteRoute(
        "POST", "/v1/operator/scheduler/configuration", operator.set_scheduler, OPERATOR_WRITE
    ),
    ReadRoute("/v1/operator/raft/configuration", operator.raft_configuration, OPERATOR_READ),
    WriteRoute("DELETE", "/v1/operator/raft/peer", operator.remove_peer, OPERATOR_WRITE),
    WriteRoute(
        "POST", "/v1/operator/raft/transfer-leadership", operator.reject_raft_change, OPERATOR_WRITE
    ),
    ReadRoute(
        "/v1/operator/autopilot/configuration", operator.autopilot_configuration, OPERATOR_READ
    ),
    WriteRoute(
        "POST", "/v1/operator/autopilot/configuration", operator.reject_raft_change, OPERATOR_WRITE
    ),
    ReadRoute("/v1/operator/autopilot/health", operator.autopilot_health, OPERATOR_READ),
    StreamRoute("/v1/operator/snapshot", snapshot.download_snapshot, MANAGEMENT, acts=True),
    WriteRoute("POST", "/v1/operator/snapshot", snapshot.reject_restore, MANAGEMENT),
    ReadRoute("/v1/operator/license", operator.license_, OPERATOR_READ),
    WriteRoute("POST", "/v1/operator/license", operator.put_license, OPERATOR_WRITE),
    WriteRoute("POST", "/v1/system/gc", system.collect_garbage, MANAGEMENT),
    WriteRoute("POST", "/v1/system/reconcile/summaries", system.reconcile_summaries, MANAGEMENT),
    ReadRoute("/v1/operator/audit", audit.index, MANAGEMENT, ("audit",)),
    ReadRoute("/v1/vars", variables.index, KNOWN, ("variables/{namespace}/{prefix}*",)),
    ReadRoute(
        "/v1/var/{path}",
        variables.read,
        on_variable("read"),
        ("variables/{namespace}/{path}",),
        shows_secrets=True,
    ),
    WriteRoute("POST", "/v1/var/{path}", variables.write, on_variable("write")),
    WriteRoute("DELETE", "/v1/var/{path}", variables.remove, on_variable("destroy")),
    WriteRoute("POST", "/v1/acl/bootstrap", acl.bootstrap, ANYONE),
    ReadRoute("/v1/acl/tokens", acl.list_tokens, MANAGEMENT, ("tokens/",)),
    ReadRoute("/v1/acl/token/self", acl.read_self_token, KNOWN_OR_WHY),
    WriteRoute("POST", "/v1/acl/token", acl.create_token, MANAGEMENT),
    WriteRoute("POST", "/v1/acl/token/onetime", onetime.create_one_time_token, KNOWN),
    WriteRoute("POST", "/v1/acl/token/onetime/exchange", onetime.exchange, ANYONE),
    ReadRoute(
        "/v1/acl/token/{accessor}",
        acl.read_token,
        KNOWN,
        ("tokens/{accessor}",),
        shows_secrets=True,
    ),
    WriteRoute("POST", "/v1/acl/token/{accessor}", acl.update_token, MANAGEMENT),
    WriteRoute("DELETE", "/v1/acl/token/{accessor}", acl.delete_token, MANAGEMENT),
    ReadRoute("/v1/acl/policies", acl.list_policies, KNOWN, ("policies/",)),
    ReadRoute("/v1/acl/policy/self", acl.list_policies, KNOWN, ("policies/",)),
    ReadRoute("/v1/acl/policy/{name}", acl.read_policy, KNOWN, ("policies/{name}",)),
    WriteRoute("POST", "/v1/acl/policy/{name}", acl.put_policy, MANAGEMENT),
    WriteRoute("DELETE", "/v1/acl/policy/{name}", acl.delete_policy, MANAGEMENT),
    WriteRoute("POST", "/v1/acl/explain", acl.explain_request, MANAGEMENT),
    ReadRoute("/v1/acl/roles", acl.list_roles, KNOWN, ("acl_roles/",)),
    WriteRoute("POST", "/v1/acl/role", acl.create_role, MANAGEMENT),
    ReadRoute("/v1/acl/role/name/{name}", acl.read_role_by_name, KNOWN, ("acl_roles/",)),
    ReadRoute("/v1/acl/role/{role_id}", acl.read_role, KNOWN, ("acl_roles/{role_id}",)),
    WriteRoute("POST", "/v1/acl/role/{role_id}", acl.update_role, MANAGEMENT),
    WriteRoute("DELETE", "/v1/acl/role/{role_id}", acl.delete_role, MANAGEMENT),
    ReadRoute("/v1/acl/auth-methods", auth_methods.list_methods, ANYONE, ("auth_methods/",)),
    WriteRoute("POST", "/v1/acl/auth-method", auth_methods.create_method, MANAGEMENT),
    ReadRoute(
        "/v1/acl/auth-method/{name}",
        auth_methods.read_method,
        MANAGEMENT,
        ("auth_methods/{name}",),
    ),
    WriteRoute("POST", "/v1/acl/auth-method/{name}", auth_methods.update_method, MANAGEMENT),
    WriteRoute("DELETE", "/v1/acl/auth-method/{name}", auth_methods.delete_method, MANAGEMENT),
    ReadRoute("/v1/acl/binding-rules", auth_methods.list_rules, MANAGEMENT, ("binding_rules/",)),
    WriteRoute("POST", "/v1/acl/binding-rule", auth_methods.create_rule, MANAGEMENT),
    ReadRoute(
        "/v1/acl/binding-rule/{rule_id}",
        auth_methods.read_rule,
        MANAGEMENT,
        ("binding_rules/{rule_id}",),
    ),
    WriteRoute("POST", "/v1/acl/binding-rule/{rule_id}", auth_methods.update_rule, MANAGEMENT),
    WriteRoute("DELETE", "/v1/acl/binding-rule/{rule_id}", auth_methods.delete_rule, MANAGEMENT),
    WriteRoute("POST", "/v1/acl/login", auth_methods.login, ANYONE),
    WriteRoute("POST", "/v1/acl/oidc/auth-url", auth_methods.oidc_url, ANYONE),
    WriteRoute("POST", "/v1/acl/oidc/complete-auth", auth_methods.oidc_complete, ANYONE),
    ReadRoute("/v1/namespaces", namespaces.index, KNOWN, ("namespaces/",)),
    WriteRoute("POST", "/v1/namespace", namespaces.create, MANAGEMENT),
    ReadRoute("/v1/namespace/{name}", namespaces.read, KNOWN, ("namespaces/{name}",)),
    WriteRoute("POST", "/v1/namespace/{name}", namespaces.update, MANAGEMENT),
    WriteRoute("DELETE", "/v1/namespace/{name}", namespaces.remove, MANAGEMENT),
    ReadRoute("/v1/volumes", host_volumes.index, LIST_VOLUMES, ("host_volumes",)),
    ReadRoute("/v1/volume/csi/{volume_id}", unsupported.unknown_volume, LIST_VOLUMES),
    WriteRoute("POST", "/v1/volume/host/create", host_volumes.create, KNOWN),
    WriteRoute("POST", "/v1/volume/host/register", host_volumes.register, KNOWN),
    ReadRoute(
        "/v1/volume/host/{volume_id}", host_volumes.read, KNOWN, ("host_volumes/{volume_id}",)
    ),
    WriteRoute("DELETE", "/v1/volume/host/{volume_id}", host_volumes.delete, KNOWN),
    ReadRoute("/v1/plugins", unsupported.empty_list, on_scope("plugin", "list")),
    ReadRoute("/v1/plugin/csi/{plugin_id}", unsupported.unknown_plugin, on_scope("plugin", "read")),
    *(
        ReadRoute(path, unsupported.unsupported, KNOWN, any_method=True)
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
    *(
        ReadRoute(path, unsupported.incomplete, ANYONE, any_method=True)
        for path in (
            "/v1/acl/auth-method/",
            "/v1/acl/binding-rule/",
            "/v1/acl/policy/",
            "/v1/acl/role/",
            "/v1/acl/role/name/",
            "/v1/acl/token/",
            "/v1/namespace/",
            "/v1/service/",
            "/v1/var/",
        )
    ),
    ReadRoute("/v1/openapi.json", _document, ANYONE, long=True),
    ReadRoute("/v1/openapi", _page, ANYONE, long=True),
)
