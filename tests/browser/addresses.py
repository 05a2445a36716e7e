"""The addresses of all pages of the web interface, in groups. Each group has one test."""

from tests.browser.sample_jobs import fill_access, fill_plans
from tests.service.daemon import Steward

CALENDAR = "calendars"  # the group that needs a calendar, queues and a freeze
SIGNED_IN = "access"  # the group that needs a daemon with tokens
# A daemon and a browser are started for each group. A start takes as long as four pages.
GROUPS: dict[str, tuple[str, ...]] = {
    "jobs": (
        *("", "jobs", "services", "find?q=web", "keys", "settings", "not-found"),
        *("job/web", "job/web/definition", "job/web/deployments", "job/web/evaluations"),
    ),
    "runs": (
        *("job/web/versions", "job/web/compare?old=0&new=1", "run", "run?job=web"),
        *("job/backup/launches", "job/convert/launches", "runs", "job/etl/run"),
    ),
    "allocation": (
        *("job/web/logs", "allocation/{alloc}/logs", "allocation/{alloc}/logs?q=GET", "log"),
        *("allocation/{alloc}", "allocation/{alloc}/files", "allocation/{alloc}/terminal"),
        "job/train-model",
    ),
    CALENDAR: (
        *("nodes", "node/{node}", "evaluations", "evaluation/{evaluation}"),
        *("calendars", "calendar/business", "queues?name=reports&namespace=default"),
        *("freezes", "variables", "variable/app"),
    ),
    SIGNED_IN: (
        "access",
        "policy/lookers",
        "role/{role}",
        "method/azure",
        "method/azure/role/web",
        "auth-method/ci",
        "binding-rule/{rule}",
        "sign-in",
    ),
    "forms": (
        *("methods", "method/azure/edit", "method/azure/config", "method/azure/roles"),
        *("auth-methods", "auth-method/ci/edit", "auth-method/ci/rules"),
    ),
}
WITH_TOKENS = {SIGNED_IN, "forms"}
# Routes that are not pages: streams, files, and parts that a script inserts into a page.
NO_PAGE = {
    "/ui/static/{name}",
    "/ui/events",
    "/ui/job/{job_id}/log",
    "/ui/job/{job_id}/lines",
    "/ui/job/{job_id}/usage",
    "/ui/payload/{digest}",
    "/ui/allocation/{alloc_id}/log",
    "/ui/allocation/{alloc_id}/lines",
    "/ui/allocation/{alloc_id}/usage",
    "/ui/allocation/{alloc_id}/file",
    "/ui/allocation/{alloc_id}/kept",
    "/ui/node/{node_id}/usage",
}


async def addresses(steward: Steward, group: str) -> list[str]:
    """Fill the daemon for a group of pages, and return their addresses."""
    names = {}
    if group in WITH_TOKENS:
        names["role"], names["rule"] = await fill_access(steward)
    else:
        placed = await steward.allocations("web", "running", "complete")
        alloc = next(alloc for alloc in placed if alloc["ClientStatus"] == "running")
        (node,) = await steward.get("/v1/nodes")
        names = {"alloc": alloc["ID"], "evaluation": alloc["EvalID"], "node": node["ID"]}
    if group == CALENDAR:
        await fill_plans(steward)
    return [f"{steward.address}/ui/{page.format_map(names)}" for page in GROUPS[group]]
