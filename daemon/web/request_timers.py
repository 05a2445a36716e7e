"""Request timers, under Nomad's names for each route.

Nomad measures the calls between its servers. This module maps routes to the names of these calls. A
route without such a call has no timer.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from daemon.timers import TIMERS

QUERIES, REQUESTS, ERRORS = (
    f"nomad.nomad.rpc.{kind}" for kind in ("query", "request", "request_error")
)

_READS = {
    "/v1/jobs": "job.list",
    "/v1/jobs/statuses": "jobs.statuses",
    "/v1/job/{job_id}": "job.get_job",
    "/v1/job/{job_id}/versions": "job.get_job_versions",
    "/v1/job/{job_id}/submission": "job.get_job_submission",
    "/v1/job/{job_id}/summary": "job_summary.get_job_summary",
    "/v1/job/{job_id}/allocations": "job.allocations",
    "/v1/job/{job_id}/evaluations": "job.evaluations",
    "/v1/job/{job_id}/deployments": "job.deployments",
    "/v1/job/{job_id}/deployment": "job.latest_deployment",
    "/v1/job/{job_id}/scale": "job.scale_status",
    "/v1/job/{job_id}/services": "job.get_service_registrations",
    "/v1/job/{job_id}/actions": "job.get_actions",
    "/v1/scaling/policies": "scaling.list_policies",
    "/v1/scaling/policy/{policy_id}": "scaling.get_policy",
    "/v1/allocations": "alloc.list",
    "/v1/allocation/{alloc_id}": "alloc.get_alloc",
    "/v1/allocation/{alloc_id}/services": "alloc.get_service_registrations",
    "/v1/evaluations": "eval.list",
    "/v1/evaluations/count": "eval.count",
    "/v1/evaluation/{eval_id}": "eval.get_eval",
    "/v1/evaluation/{eval_id}/allocations": "eval.allocations",
    "/v1/deployments": "deployment.list",
    "/v1/deployment/{deployment_id}": "deployment.get_deployment",
    "/v1/deployment/allocations/{deployment_id}": "deployment.allocations",
    "/v1/nodes": "client.list",
    "/v1/node/{node_id}": "client.get_node",
    "/v1/node/{node_id}/allocations": "client.get_allocs",
    "/v1/node/pools": "node_pool.list",
    "/v1/node/pool/{name}": "node_pool.get_node_pool",
    "/v1/node/pool/{name}/jobs": "node_pool.list_jobs",
    "/v1/node/pool/{name}/nodes": "node_pool.list_nodes",
    "/v1/services": "service_registration.list",
    "/v1/service/{name}": "service_registration.get_service",
    "/v1/vars": "variables.list",
    "/v1/var/{path}": "variables.read",
    "/v1/namespaces": "namespace.list_namespace",
    "/v1/namespace/{name}": "namespace.get_namespace",
    "/v1/acl/tokens": "acl.list_tokens",
    "/v1/acl/token/{accessor}": "acl.get_token",
    "/v1/acl/policies": "acl.list_policies",
    "/v1/acl/policy/{name}": "acl.get_policy",
    "/v1/acl/roles": "acl.list_roles",
    "/v1/acl/role/{role_id}": "acl.get_role_id",
    "/v1/acl/role/name/{name}": "acl.get_role_name",
    "/v1/operator/keyring/keys": "keyring.list",
    "/v1/volumes": "host_volume.list",
    "/v1/volume/host/{volume_id}": "host_volume.get",
    "/v1/client/stats": "client_stats.stats",
    "/v1/client/metadata": "client_meta.read",
    "/v1/client/allocation/{alloc_id}/stats": "client_allocations.stats",
    "/v1/client/allocation/{alloc_id}/checks": "client_allocations.checks",
    "/v1/client/fs/ls/{alloc_id}": "file_system.list",
    "/v1/client/fs/stat/{alloc_id}": "file_system.stat",
    "/v1/client/fs/logs/{alloc_id}": "file_system.logs",
}
_WRITES = {
    "/v1/jobs": "job.register",
    "/v1/job/{job_id}": "job.register",
    "/v1/validate/job": "job.validate",
    "/v1/job/{job_id}/plan": "job.plan",
    "/v1/job/{job_id}/revert": "job.revert",
    "/v1/job/{job_id}/stable": "job.stable",
    "/v1/job/{job_id}/versions/{name}/tag": "job.tag_version",
    "/v1/job/{job_id}/scale": "job.scale",
    "/v1/job/{job_id}/evaluate": "job.evaluate",
    "/v1/job/{job_id}/dispatch": "job.dispatch",
    "/v1/job/{job_id}/periodic/force": "periodic.force",
    "/v1/search": "search.prefix_search",
    "/v1/search/fuzzy": "search.fuzzy_search",
    "/v1/allocation/{alloc_id}/stop": "alloc.stop",
    "/v1/deployment/promote/{deployment_id}": "deployment.promote",
    "/v1/deployment/fail/{deployment_id}": "deployment.fail",
    "/v1/deployment/pause/{deployment_id}": "deployment.pause",
    "/v1/deployment/unblock/{deployment_id}": "deployment.unblock",
    "/v1/deployment/allocation-health/{deployment_id}": "deployment.set_alloc_health",
    "/v1/node/{node_id}/evaluate": "client.evaluate",
    "/v1/node/{node_id}/eligibility": "client.update_eligibility",
    "/v1/node/{node_id}/drain": "client.update_drain",
    "/v1/node/{node_id}/purge": "client.deregister",
    "/v1/node/pools": "node_pool.upsert_node_pools",
    "/v1/node/pool/{name}": "node_pool.upsert_node_pools",
    "/v1/client/metadata": "client_meta.apply",
    "/v1/client/allocation/{alloc_id}/restart": "client_allocations.restart",
    "/v1/client/allocation/{alloc_id}/signal": "client_allocations.signal",
    "/v1/client/allocation/{alloc_id}/pause": "client_allocations.pause_set",
    "/v1/namespace": "namespace.upsert_namespaces",
    "/v1/namespace/{name}": "namespace.upsert_namespaces",
    "/v1/acl/bootstrap": "acl.bootstrap",
    "/v1/acl/token": "acl.upsert_tokens",
    "/v1/acl/token/{accessor}": "acl.upsert_tokens",
    "/v1/acl/policy/{name}": "acl.upsert_policies",
    "/v1/acl/role": "acl.upsert_roles",
    "/v1/acl/role/{role_id}": "acl.upsert_roles",
    "/v1/operator/keyring/rotate": "keyring.rotate",
    "/v1/volume/host/create": "host_volume.create",
    "/v1/volume/host/register": "host_volume.register",
}
_DELETIONS = {
    "/v1/job/{job_id}": "job.deregister",
    "/v1/job/{job_id}/versions/{name}/tag": "job.tag_version",
    "/v1/evaluations": "eval.delete",
    "/v1/node/pool/{name}": "node_pool.delete_node_pools",
    "/v1/service/{name}/{id}": "service_registration.delete_id",
    "/v1/namespace/{name}": "namespace.delete_namespaces",
    "/v1/acl/token/{accessor}": "acl.delete_tokens",
    "/v1/acl/policy/{name}": "acl.delete_policies",
    "/v1/acl/role/{role_id}": "acl.delete_roles",
    "/v1/operator/keyring/key/{key_id}": "keyring.delete",
    "/v1/volume/host/{volume_id}": "host_volume.delete",
}

ROUTES: Mapping[tuple[str, str], str] = {
    (method, path): f"nomad.nomad.{name}"
    for methods, table in (
        (("GET",), _READS),
        (("POST", "PUT"), _WRITES),
        (("DELETE",), _DELETIONS),
    )
    for method in methods
    for path, name in table.items()
}


class RequestTimer(AbstractContextManager[None]):
    """A context manager that counts a request for a route, and its error if the block raises one.

    It also measures the duration of the block if Nomad has a timer for the route.
    """

    def __init__(self, method: str, path: str) -> None:
        self._kind = QUERIES if method == "GET" else REQUESTS
        self._name = ROUTES.get((method, path))

    def __enter__(self) -> None:
        """Count the request."""
        TIMERS.count(self._kind)
        self._began = TIMERS.clock()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Record the duration, and an error that the dispatcher converts to a response."""
        if self._name is not None:
            TIMERS.add(self._name, TIMERS.clock() - self._began)
        if isinstance(error, Exception):
            TIMERS.count(ERRORS)
