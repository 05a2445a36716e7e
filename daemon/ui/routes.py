"""The web interface in one table: every page and every form action.

This table defines no permissions. Each page calls the API on behalf of its user, and the API's
table of routes defines the permissions.
"""

from typing import TYPE_CHECKING

from daemon.web.lazy import LazyModule
from daemon.web.ui_session import UiPage

if TYPE_CHECKING:
    from daemon.ui import (
        access,
        actions,
        allocation,
        auth_methods,
        calendars,
        cluster,
        find,
        flows,
        freezes,
        identity,
        job,
        jobs,
        live_updates,
        login_methods,
        logs,
        plan_and_run,
        render,
        sign_in,
        uploads,
        usage,
        variables,
    )
else:  # Jinja and all pages are imported at the first request
    access = LazyModule("daemon.ui.access")
    actions = LazyModule("daemon.ui.actions")
    allocation = LazyModule("daemon.ui.allocation")
    auth_methods = LazyModule("daemon.ui.auth_methods")
    calendars = LazyModule("daemon.ui.calendars")
    freezes = LazyModule("daemon.ui.freezes")
    cluster = LazyModule("daemon.ui.cluster")
    find = LazyModule("daemon.ui.find")
    flows = LazyModule("daemon.ui.flows")
    identity = LazyModule("daemon.ui.identity")
    job = LazyModule("daemon.ui.job")
    jobs = LazyModule("daemon.ui.jobs")
    live_updates = LazyModule("daemon.ui.live_updates")
    login_methods = LazyModule("daemon.ui.login_methods")
    logs = LazyModule("daemon.ui.logs")
    plan_and_run = LazyModule("daemon.ui.plan_and_run")
    render = LazyModule("daemon.ui.render")
    sign_in = LazyModule("daemon.ui.sign_in")
    uploads = LazyModule("daemon.ui.uploads")
    usage = LazyModule("daemon.ui.usage")
    variables = LazyModule("daemon.ui.variables")

PAGES: tuple[UiPage, ...] = (
    UiPage("/ui/", jobs.overview),
    UiPage("/ui/static/{name}", render.static, is_file=True),
    UiPage("/ui/density", render.set_density, "POST"),
    UiPage("/ui/events", live_updates.events),
    UiPage("/ui/sign-in", sign_in.form),
    UiPage("/ui/sign-in", sign_in.sign_in, "POST"),
    UiPage("/ui/sign-out", sign_in.sign_out, "POST"),
    UiPage("/ui/jobs", jobs.index),
    UiPage("/ui/find", find.search),
    UiPage("/ui/keys", find.keys),
    UiPage("/ui/runs", flows.index),
    UiPage("/ui/queues", flows.queues),
    UiPage("/ui/freezes", freezes.index),
    UiPage("/ui/freezes", freezes.make, "POST", calls="POST /v1/freeze"),
    UiPage("/ui/freezes/thaw", freezes.thaw, "POST", calls="DELETE /v1/freeze/{freeze_id}"),
    UiPage("/ui/run", plan_and_run.form),
    UiPage("/ui/check", plan_and_run.check, "POST", calls="POST /v1/jobs/parse"),
    UiPage("/ui/plan", plan_and_run.plan, "POST", calls="POST /v1/job/{job_id}/plan"),
    UiPage("/ui/run", plan_and_run.run, "POST", calls="POST /v1/jobs"),
    UiPage("/ui/job/{job_id}", job.overview),
    UiPage("/ui/job/{job_id}/definition", job.definition),
    UiPage("/ui/job/{job_id}/versions", job.versions),
    UiPage("/ui/job/{job_id}/compare", job.compare),
    UiPage("/ui/job/{job_id}/deployments", job.deployments),
    UiPage("/ui/job/{job_id}/evaluations", job.evaluations),
    UiPage("/ui/job/{job_id}/run", flows.run),
    *(
        UiPage(
            f"/ui/job/{{job_id}}/run/{act}",
            flows.act,
            "POST",
            calls=f"POST /v1/job/{{job_id}}/run/{act}",
        )
        for act in ("cancel", "skip", "accept", "rerun", "approve", "reject", "step")
    ),
    UiPage("/ui/job/{job_id}/launches", job.periodic_page),
    UiPage("/ui/job/{job_id}/logs", logs.of_job),
    UiPage("/ui/job/{job_id}/log", logs.job_log),
    UiPage("/ui/job/{job_id}/lines", logs.job_lines),
    UiPage("/ui/job/{job_id}/usage", usage.of_job),
    UiPage("/ui/job/{job_id}/stop", actions.stop, "POST", calls="DELETE /v1/job/{job_id}"),
    UiPage("/ui/job/{job_id}/start", actions.start, "POST", calls="POST /v1/jobs"),
    UiPage(
        "/ui/job/{job_id}/evaluate",
        actions.evaluate,
        "POST",
        calls="POST /v1/job/{job_id}/evaluate",
    ),
    UiPage("/ui/job/{job_id}/scale", actions.scale, "POST", calls="POST /v1/job/{job_id}/scale"),
    UiPage("/ui/job/{job_id}/revert", actions.revert, "POST", calls="POST /v1/job/{job_id}/revert"),
    UiPage(
        "/ui/job/{job_id}/dispatch",
        actions.dispatch,
        "POST",
        calls="POST /v1/job/{job_id}/dispatch",
    ),
    UiPage("/ui/payload/{digest}", uploads.state),
    UiPage("/ui/payload/{digest}", uploads.receive, "POST", calls="POST /v1/payload/{digest}"),
    UiPage(
        "/ui/job/{job_id}/force",
        actions.force,
        "POST",
        calls="POST /v1/job/{job_id}/periodic/force",
    ),
    UiPage(
        "/ui/job/{job_id}/pause",
        actions.pause,
        "POST",
        calls="POST /v1/job/{job_id}/periodic/pause",
    ),
    UiPage(
        "/ui/deployment/{deployment_id}/{act}",
        actions.steer,
        "POST",
        calls="POST /v1/deployment/fail/{deployment_id}",
    ),
    UiPage("/ui/allocation/{alloc_id}", allocation.overview),
    UiPage("/ui/allocation/{alloc_id}/logs", logs.of_task),
    UiPage("/ui/allocation/{alloc_id}/log", logs.task_log),
    UiPage("/ui/allocation/{alloc_id}/lines", logs.task_lines),
    UiPage("/ui/allocation/{alloc_id}/files", allocation.files),
    UiPage("/ui/allocation/{alloc_id}/file", allocation.file),
    UiPage("/ui/allocation/{alloc_id}/kept", allocation.kept_file),
    UiPage(
        "/ui/allocation/{alloc_id}/terminal",
        allocation.terminal,
        calls="GET /v1/client/allocation/{alloc_id}/exec",
    ),
    UiPage("/ui/allocation/{alloc_id}/usage", usage.of_allocation),
    UiPage(
        "/ui/allocation/{alloc_id}/restart",
        actions.restart,
        "POST",
        calls="POST /v1/client/allocation/{alloc_id}/restart",
    ),
    UiPage(
        "/ui/allocation/{alloc_id}/stop",
        actions.stop_allocation,
        "POST",
        calls="POST /v1/allocation/{alloc_id}/stop",
    ),
    UiPage("/ui/nodes", cluster.nodes),
    UiPage("/ui/node/{node_id}", cluster.node),
    UiPage("/ui/node/{node_id}/usage", usage.of_node),
    UiPage(
        "/ui/node/{node_id}/eligibility",
        actions.eligibility,
        "POST",
        calls="POST /v1/node/{node_id}/eligibility",
    ),
    UiPage(
        "/ui/node/{node_id}/drain",
        actions.drain,
        "POST",
        calls="POST /v1/node/{node_id}/drain",
    ),
    UiPage("/ui/services", cluster.services),
    UiPage("/ui/evaluations", cluster.evaluations),
    UiPage("/ui/evaluation/{eval_id}", cluster.evaluation),
    UiPage("/ui/calendars", calendars.index),
    UiPage("/ui/calendars", calendars.store, "POST", calls="POST /v1/calendar/{name}"),
    UiPage(
        "/ui/calendars/import",
        calendars.import_file,
        "POST",
        calls="POST /v1/calendar/{name}/import",
    ),
    UiPage("/ui/calendars/remove", calendars.remove, "POST", calls="DELETE /v1/calendar/{name}"),
    UiPage("/ui/calendar/{name}", calendars.calendar),
    UiPage("/ui/variables", variables.index),
    UiPage("/ui/variables", variables.put_variable, "POST", calls="POST /v1/var/{path}"),
    UiPage(
        "/ui/variables/remove", variables.remove_variable, "POST", calls="DELETE /v1/var/{path}"
    ),
    UiPage("/ui/variable/{path}", variables.variable),
    UiPage("/ui/access", access.overview),
    UiPage("/ui/tokens", identity.create_token, "POST", calls="POST /v1/acl/token"),
    UiPage(
        "/ui/token/{accessor}/end",
        identity.revoke_token,
        "POST",
        calls="DELETE /v1/acl/token/{accessor}",
    ),
    UiPage("/ui/policies", identity.put_policy, "POST", calls="POST /v1/acl/policy/{name}"),
    UiPage("/ui/policy/{name}", access.policy),
    UiPage(
        "/ui/policy/{name}/remove",
        identity.remove_policy,
        "POST",
        calls="DELETE /v1/acl/policy/{name}",
    ),
    UiPage("/ui/roles", identity.put_role, "POST", calls="POST /v1/acl/role"),
    UiPage("/ui/role/{role_id}", identity.role),
    UiPage(
        "/ui/role/{role_id}/remove",
        identity.remove_role,
        "POST",
        calls="DELETE /v1/acl/role/{role_id}",
    ),
    UiPage("/ui/explain", identity.explain, "POST", calls="POST /v1/acl/explain"),
    UiPage("/ui/method/{path}", identity.method),
    UiPage(
        "/ui/method/{path}/explain",
        identity.explain_login,
        "POST",
        calls="POST /v1/auth/{mount}/explain",
    ),
    UiPage("/ui/methods", login_methods.new_method),
    UiPage("/ui/methods", login_methods.enable, "POST", calls="POST /v1/sys/auth/{mount}"),
    UiPage("/ui/method/{path}/edit", login_methods.edit_method),
    UiPage(
        "/ui/method/{path}/edit",
        login_methods.tune,
        "POST",
        calls="POST /v1/sys/auth/{mount}/tune",
    ),
    UiPage(
        "/ui/method/{path}/disable",
        login_methods.disable,
        "POST",
        calls="DELETE /v1/sys/auth/{mount}",
    ),
    UiPage("/ui/method/{path}/config", login_methods.edit_config),
    UiPage(
        "/ui/method/{path}/config",
        login_methods.write_config,
        "POST",
        calls="POST /v1/auth/{mount}/config",
    ),
    UiPage("/ui/method/{path}/roles", login_methods.new_role),
    UiPage(
        "/ui/method/{path}/roles",
        login_methods.create_role,
        "POST",
        calls="POST /v1/auth/{mount}/role/{name}",
    ),
    UiPage("/ui/method/{path}/role/{name}", login_methods.edit_role),
    UiPage(
        "/ui/method/{path}/role/{name}",
        login_methods.write_role,
        "POST",
        calls="POST /v1/auth/{mount}/role/{name}",
    ),
    UiPage(
        "/ui/method/{path}/role/{name}/remove",
        login_methods.remove_role,
        "POST",
        calls="DELETE /v1/auth/{mount}/role/{name}",
    ),
    UiPage("/ui/auth-methods", auth_methods.new_method),
    UiPage(
        "/ui/auth-methods",
        auth_methods.create_method,
        "POST",
        calls="POST /v1/acl/auth-method",
    ),
    UiPage("/ui/auth-method/{name}", auth_methods.method),
    UiPage("/ui/auth-method/{name}/edit", auth_methods.edit_method),
    UiPage(
        "/ui/auth-method/{name}/edit",
        auth_methods.change_method,
        "POST",
        calls="POST /v1/acl/auth-method/{name}",
    ),
    UiPage(
        "/ui/auth-method/{name}/remove",
        auth_methods.remove_method,
        "POST",
        calls="DELETE /v1/acl/auth-method/{name}",
    ),
    UiPage("/ui/auth-method/{name}/rules", auth_methods.new_rule),
    UiPage(
        "/ui/auth-method/{name}/rules",
        auth_methods.create_rule,
        "POST",
        calls="POST /v1/acl/binding-rule",
    ),
    UiPage("/ui/binding-rule/{rule_id}", auth_methods.edit_rule),
    UiPage(
        "/ui/binding-rule/{rule_id}",
        auth_methods.change_rule,
        "POST",
        calls="POST /v1/acl/binding-rule/{rule_id}",
    ),
    UiPage(
        "/ui/binding-rule/{rule_id}/remove",
        auth_methods.remove_rule,
        "POST",
        calls="DELETE /v1/acl/binding-rule/{rule_id}",
    ),
    UiPage("/ui/log", cluster.events),
    UiPage("/ui/settings", cluster.settings),
    UiPage("/ui/notify", cluster.test_notifications, "POST", calls="POST /v1/operator/notify/test"),
    UiPage("/ui/snapshot", cluster.snapshot, "POST", calls="GET /v1/operator/snapshot"),
    UiPage("/ui/not-found", render.not_found),
    UiPage("/ui/session/{session_id}/end", access.end_session, "POST"),
    UiPage("/ui/release", actions.release, "POST", calls="POST /v1/operator/faults/release"),
)
