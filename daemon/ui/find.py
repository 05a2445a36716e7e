"""Search for objects, pages and actions by a part of their name.

All results come from the API with the user's token, so the user may see all of them. Each kind of
object has at most `MOST` results.
"""

import re
from typing import Any

import msgspec

from daemon.ui import formatting
from daemon.ui.navigation import KEYS, PLACES
from daemon.ui.render import Found, optional, page
from daemon.web.ui_session import UiRequest
from storage.errors import Denied, Malformed, NotFound

MOST = 8  # results of each kind
SHORTEST = 2  # characters of a search for names other than jobs, as in the API
LONGEST = 200  # characters of a search text
_ID = re.compile(r"[0-9a-f]{4,8}[0-9a-f-]{0,28}", re.IGNORECASE)  # a part of an identifier
_MORE_PLACES = (
    ("/ui/run", "Run a job"),
    ("/ui/variables#new", "Create a variable"),
    ("/ui/access#tokens", "Create a token"),
    ("/ui/keys", "Keys"),
)
# For each action: the end of the path of its page, and the button that is opened there.
_ACTIONS = {
    "stop": ("", "stop"),
    "start": ("", "start"),
    "scale": ("", "scale"),
    "evaluate": ("", "evaluate"),
    "change": ("", ""),
    "logs": ("/logs", ""),
    "versions": ("/versions", ""),
    "revert": ("/versions", "revert"),
    "dispatch": ("/launches", "dispatch"),
    "launch": ("/launches", "force"),
    "pause": ("/launches", "pause"),
}


class Hit(msgspec.Struct, frozen=True):
    """A result: its title, URL, detail and state, and the capability that the user lacks for it."""

    title: str
    url: str
    detail: str = ""
    state: str = ""
    lacks: str = ""


class Hits(msgspec.Struct, frozen=True):
    """The results of one kind. If `is_cut` is true, there are more results.

    `more` is the URL of a page with all results, or empty.
    """

    kind: str
    hits: list[Hit]
    is_cut: bool = False
    more: str = ""


@page("find.html")
async def search(ui_request: UiRequest) -> Found:
    """Show the objects whose name contains the text in `q`, or whose ID begins with it."""
    text = ui_request.query.text("q").strip()
    if len(text) > LONGEST:
        raise Malformed(f"q has {len(text)} characters: search for at most {LONGEST}")
    results = [Hits("Pages", _matching_pages(text))]
    if text:
        verb, query = _action(text)
        jobs, is_cut = await _statuses(ui_request, query)
        results = [_actions(ui_request, verb, jobs, is_cut), _jobs(query, jobs, is_cut), *results]
        results += [await _runs(ui_request, text)]
    if len(text) >= SHORTEST:
        results += await _named(ui_request, text)
        results += [await _services(ui_request, text)]
    if _ID.fullmatch(text):
        results += await _identified(ui_request, text.lower())
    return {"text": text, "found": [result for result in results if result.hits], "follow": ""}


@page("keys.html")
async def keys(ui_request: UiRequest) -> Found:
    """List the keyboard shortcuts of the interface."""
    return {"keys": KEYS, "follow": ""}


def _matching_pages(text: str) -> list[Hit]:
    query = text.lower()
    pages = [*((url, name) for url, name, _ in PLACES), *_MORE_PLACES]
    return [Hit(name, url) for url, name in pages if query in name.lower()]


def _job_url(job: dict[str, Any], suffix: str = "", **query: object) -> str:
    namespace = job["Namespace"] if job["Namespace"] != "default" else ""
    return formatting.address("/ui/job/", job["ID"], suffix, namespace=namespace, **query)


async def _statuses(ui_request: UiRequest, text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return jobs whose name contains a string, and whether there are more."""
    try:
        reply = await ui_request.ask(
            "GET",
            "/v1/jobs/statuses",
            namespace="*",
            contains=text,
            include_children=True,
            states=True,
            counts=True,
            per_page=MOST,
        )
    except Denied:
        return [], False
    statuses: list[dict[str, Any]] = await ui_request.parsed(reply)
    return statuses, bool(reply.next_token)


def _jobs(text: str, jobs: list[dict[str, Any]], is_cut: bool) -> Hits:
    hits = [
        Hit(job["ID"], _job_url(job), _within(job["Namespace"]), job["StewardState"]["State"])
        for job in jobs
    ]
    return Hits("Jobs", hits, is_cut, formatting.address("/ui/jobs", search=text))


def _action(text: str) -> tuple[str, str]:
    """Return the action at the start of a text, and the rest of the text.

    Without an action, return an empty string and the whole text.
    """
    verb, _, rest = text.partition(" ")
    has_name = verb.lower() in _ACTIONS and bool(rest.strip())
    return (verb.lower(), rest.strip()) if has_name else ("", text)


def _actions(ui_request: UiRequest, name: str, jobs: list[dict[str, Any]], is_cut: bool) -> Hits:
    """Return, for each job, the page on which the user can confirm the action `name`.

    `is_cut` means that more jobs match than `jobs` contains.
    """
    if not name:
        return Hits("Actions", [])
    ending, act = _ACTIONS[name]
    hits = []
    for job in jobs:
        namespace = job["Namespace"]
        target = formatting.address("/ui/job/", job["ID"], f"/{act}" if act else "")
        url = _job_url(
            job, ending, act="" if name == "revert" else act
        )  # there is one revert button per version
        if name == "change":
            within = namespace if namespace != "default" else ""
            url = formatting.address("/ui/run", job=job["ID"], namespace=within)
            target = "/ui/run"
        lacks = ui_request.lacks(target, namespace)
        hits.append(Hit(f"{name.capitalize()} {job['ID']}", url, _within(namespace), lacks=lacks))
    return Hits("Actions", hits, is_cut)


async def _runs(ui_request: UiRequest, text: str) -> Hits:
    matching = (
        await optional(ui_request, "/v1/runs", namespace="*", prefix=text, per_page=MOST + 1) or []
    )
    hits = [
        Hit(
            f"Run {run['Number']} of {run['JobID']}",
            _job_url({"ID": run["JobID"], **run}, "/run", number=run["Number"]),
            _within(run["Namespace"]),
            run["Status"],
        )
        for run in matching[:MOST]
    ]
    more = formatting.address("/ui/runs", search=text)
    return Hits("Runs of workflows", hits, len(matching) > MOST, more)


async def _services(ui_request: UiRequest, text: str) -> Hits:
    """Return the services whose name contains a string."""
    listed = await optional(
        ui_request, "/v1/services", namespace="*", contains=text, per_page=MOST + 1
    )
    names = [
        (service["ServiceName"], group["Namespace"])
        for group in listed or ()
        for service in group["Services"]
    ]
    hits = [
        Hit(name, _service_url(name, namespace), _within(namespace))
        for name, namespace in names[:MOST]
    ]
    return Hits("Services", hits, len(names) > MOST, "/ui/services")


def _service_url(name: str, namespace: str) -> str:
    return formatting.address("/ui/services", namespace=namespace, name=name)


async def _named(ui_request: UiRequest, text: str) -> list[Hits]:
    """Return allocations, nodes and variables whose name contains a string."""
    results = []
    for context, kind, more in (
        ("allocs", "Allocations", ""),
        # the page of variables can search only for the beginning of a path
        ("vars", "Variables", ""),
        ("nodes", "Nodes", "/ui/nodes"),
    ):
        body = {"Text": text, "Context": context, "Namespace": "*"}
        matches = (await _search(ui_request, "/v1/search/fuzzy", body)).get(context) or []
        hits = [_hit(context, match["ID"], match["Scope"]) for match in matches[:MOST]]
        results.append(Hits(kind, hits, len(matches) > MOST, more))
    return results


def _hit(context: str, name: str, scope: list[str]) -> Hit:
    if context == "allocs":
        url = formatting.address("/ui/allocation/", scope[1])
        return Hit(name, url, f"{formatting.short(scope[1])} {_within(scope[0])}".strip())
    if context == "vars":
        url = formatting.address("/ui/variable/", scope[1], namespace=scope[0])
        return Hit(name, url, _within(scope[0]))
    return Hit(name, formatting.address("/ui/node/", scope[0]))


async def _identified(ui_request: UiRequest, text: str) -> list[Hits]:
    """Return objects whose identifier begins with a text."""
    results = []
    for context, kind, prefix in (
        ("allocs", "Allocations by ID", "/ui/allocation/"),
        ("evals", "Evaluations by ID", "/ui/evaluation/"),
        ("nodes", "Nodes by ID", "/ui/node/"),
    ):
        body = {"Prefix": text, "Context": context, "Namespace": "*"}
        ids = (await _search(ui_request, "/v1/search", body)).get(context) or []
        hits = [
            Hit(identifier, formatting.address(prefix, identifier)) for identifier in ids[:MOST]
        ]
        results.append(Hits(kind, hits, len(ids) > MOST))
    return results


async def _search(ui_request: UiRequest, path: str, body: dict[str, str]) -> dict[str, Any]:
    """Return the matches of a search; empty if the user may not see the objects."""
    try:
        matches: dict[str, Any] = (await ui_request.post(path, body, namespace="*"))["Matches"]
    except (Denied, Malformed, NotFound):
        return {}
    return matches


def _within(namespace: str) -> str:
    return "" if namespace == "default" else f"in {namespace}"
