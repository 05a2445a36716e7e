"""The web interface on one screen: every page, and everything that a form may do.

Rights do not stand here: each page asks the API in the name of its visitor, and the table of the
API says what that takes.
"""

from typing import TYPE_CHECKING

from daemon.web.late import LateModule
from daemon.web.visits import Page

if TYPE_CHECKING:
    from daemon.ui import (
        access,
        acts,
        allocation,
        cluster,
        identity,
        job,
        jobs,
        live,
        logs,
        planning,
        show,
        sign,
        variables,
    )
else:  # Jinja and all pages are imported when somebody looks
    access = LateModule("daemon.ui.access")
    acts = LateModule("daemon.ui.acts")
    allocation = LateModule("daemon.ui.allocation")
    cluster = LateModule("daemon.ui.cluster")
    identity = LateModule("daemon.ui.identity")
    job = LateModule("daemon.ui.job")
    jobs = LateModule("daemon.ui.jobs")
    live = LateModule("daemon.ui.live")
    logs = LateModule("daemon.ui.logs")
    planning = LateModule("daemon.ui.planning")
    show = LateModule("daemon.ui.show")
    sign = LateModule("daemon.ui.sign")
    variables = LateModule("daemon.ui.variables")

PAGES: tuple[Page, ...] = (
    Page("/ui/", jobs.overview),
    Page("/ui/static/{name}", show.static, is_file=True),
    Page("/ui/events", live.events),
    Page("/ui/sign-in", sign.form),
    Page("/ui/sign-in", sign.sign_in, "POST"),
    Page("/ui/sign-out", sign.sign_out, "POST"),
    Page("/ui/jobs", jobs.index),
    Page("/ui/run", planning.form),
    Page("/ui/plan", planning.plan, "POST"),
    Page("/ui/run", planning.run, "POST"),
    Page("/ui/job/{job_id}", job.overview),
    Page("/ui/job/{job_id}/definition", job.definition),
    Page("/ui/job/{job_id}/versions", job.versions),
    Page("/ui/job/{job_id}/compare", job.compare),
    Page("/ui/job/{job_id}/deployments", job.deployments),
    Page("/ui/job/{job_id}/evaluations", job.evaluations),
    Page("/ui/job/{job_id}/launches", job.launches),
    Page("/ui/job/{job_id}/logs", logs.of_job),
    Page("/ui/job/{job_id}/log", logs.job_log),
    Page("/ui/job/{job_id}/stop", acts.stop, "POST"),
    Page("/ui/job/{job_id}/start", acts.start, "POST"),
    Page("/ui/job/{job_id}/evaluate", acts.evaluate, "POST"),
    Page("/ui/job/{job_id}/scale", acts.scale, "POST"),
    Page("/ui/job/{job_id}/revert", acts.revert, "POST"),
    Page("/ui/job/{job_id}/dispatch", acts.dispatch, "POST"),
    Page("/ui/job/{job_id}/force", acts.force, "POST"),
    Page("/ui/job/{job_id}/pause", acts.pause, "POST"),
    Page("/ui/deployment/{deployment_id}/{act}", acts.steer, "POST"),
    Page("/ui/allocation/{alloc_id}", allocation.overview),
    Page("/ui/allocation/{alloc_id}/logs", logs.of_task),
    Page("/ui/allocation/{alloc_id}/log", logs.task_log),
    Page("/ui/allocation/{alloc_id}/files", allocation.files),
    Page("/ui/allocation/{alloc_id}/file", allocation.file),
    Page("/ui/allocation/{alloc_id}/terminal", allocation.terminal),
    Page("/ui/allocation/{alloc_id}/restart", acts.restart, "POST"),
    Page("/ui/allocation/{alloc_id}/stop", acts.stop_allocation, "POST"),
    Page("/ui/nodes", cluster.nodes),
    Page("/ui/node/{node_id}", cluster.node),
    Page("/ui/node/{node_id}/eligibility", acts.eligibility, "POST"),
    Page("/ui/node/{node_id}/drain", acts.drain, "POST"),
    Page("/ui/services", cluster.services),
    Page("/ui/evaluations", cluster.evaluations),
    Page("/ui/evaluation/{eval_id}", cluster.evaluation),
    Page("/ui/variables", variables.index),
    Page("/ui/variables", variables.change, "POST"),
    Page("/ui/variable/{path}", variables.variable),
    Page("/ui/access", access.overview),
    Page("/ui/tokens", identity.make_token, "POST"),
    Page("/ui/token/{accessor}/end", identity.end_token, "POST"),
    Page("/ui/policies", identity.put_policy, "POST"),
    Page("/ui/policy/{name}", access.policy),
    Page("/ui/policy/{name}/remove", identity.remove_policy, "POST"),
    Page("/ui/roles", identity.put_role, "POST"),
    Page("/ui/role/{role_id}", identity.role),
    Page("/ui/role/{role_id}/remove", identity.remove_role, "POST"),
    Page("/ui/explain", identity.explain, "POST"),
    Page("/ui/method/{path}", identity.method),
    Page("/ui/method/{path}/explain", identity.explain_login, "POST"),
    Page("/ui/log", cluster.events),
    Page("/ui/settings", cluster.settings),
)
