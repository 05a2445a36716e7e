"""Search by prefix or by part of a name, in one context or in all contexts.

Callers find only objects that they may see. A search in a forbidden context is an error. A search
in all contexts leaves out the forbidden contexts.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from daemon.acl.check import EVERYWHERE
from daemon.acl.grant import CapabilitySet
from daemon.api.cluster.pools import visible_pools
from daemon.api.identifiers import check_prefix
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import DEFAULT_NAMESPACE, Request
from storage.errors import Denied, Refused
from storage.queries import host_volumes, namespaces, nodes, scaling, search, variables
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.driver import canonical
from storage.records.search import (
    FuzzyMatch,
    FuzzySearchRequest,
    JobNames,
    SearchRequest,
    SearchResponse,
    ServiceName,
)
from storage.request_context import mask_view

MOST_PREFIX = 20  # matches per context, as in Nomad
MOST_FUZZY = 100
_MOST_UNSORTED = 4_000  # matches of a kind in memory; a search can find one for each job
SHORTEST = 2  # minimum length of a fuzzy search text

_JOB_READERS = ("allocs", "deployment", "evals", "jobs", "vars")
# By driver: the key of a task's configuration that names its program or image.
_PROGRAMS = {
    "podman": ("image", "images"),
    "exec": ("command", "commands"),
    "raw_exec": ("command", "commands"),
    "java": ("class", "classes"),
}


class _Place(msgspec.Struct, frozen=True):
    """The caller and the namespaces of a search."""

    request: Request
    db: ReadSnapshot
    grant: CapabilitySet
    namespaces: list[str]

    def where(self, *capabilities: str) -> list[str]:
        """Return the namespaces in which the caller has any of these capabilities."""
        return [name for name in self.namespaces if self.grant.may(name, *capabilities)]


class _Context(msgspec.Struct, frozen=True):
    """A type of object: the table with its index, its identifiers, and its search functions."""

    table: str
    beginning: Callable[[_Place, str], Iterable[str]]
    is_uuid: bool = False
    named: Callable[[_Place, str], Iterator[tuple[str, FuzzyMatch]]] | None = None


# --- endpoints ---


def by_prefix(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Find objects whose identifier begins with `Prefix`."""
    search_request = request.decode(SearchRequest)
    scope = _place(request, db, search_request.namespace)
    matches: dict[str, list[str] | None] = {}
    truncations = {}
    contexts = _open(scope, search_request.context)
    for name in contexts:
        context = _CONTEXTS[name]
        if context.is_uuid and not _may_begin_id(search_request.prefix):
            continue
        ids = list(islice(context.beginning(scope, search_request.prefix), MOST_PREFIX + 1))
        matches[name] = ids[:MOST_PREFIX] or None
        truncations[name] = len(ids) > MOST_PREFIX
    return _answer(db, contexts, matches, truncations)


def fuzzy(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Find names that contain `Text`, ignoring case."""
    search_request = request.decode(FuzzySearchRequest)
    scope = _place(request, db, search_request.namespace)
    contexts = _open(scope, search_request.context)
    if len(search_request.text) < SHORTEST:
        raise Refused(
            f"fuzzy search query must be at least {SHORTEST} characters, got {len(search_request.text)}"
        )
    text = search_request.text.lower()
    matches: dict[str, list[FuzzyMatch]] = {}
    truncations = dict.fromkeys(contexts, False)
    for name in contexts:
        context = _CONTEXTS[name]
        if context.named is None:
            ids = islice(context.beginning(scope, text), MOST_PREFIX + 1)
            begin = [FuzzyMatch(id=identifier) for identifier in ids]
            matches[name] = begin[:MOST_PREFIX]
            truncations[name] = len(begin) > MOST_PREFIX
            continue
        if name in _ALWAYS_LISTED:
            matches[name] = []
        for kind, best in _best_matches(context.named(scope, text), text).items():
            matches[kind] = best[:MOST_FUZZY]
            truncations[kind] = len(best) > MOST_FUZZY
    # For names inside jobs, Nomad shows the flag of a context only if there are more matches.
    truncated = {kind: more for kind, more in truncations.items() if more or kind in _CONTEXTS}
    return _answer(db, contexts, matches, truncated)


def _answer(
    db: ReadSnapshot,
    contexts: Iterable[str],
    matches: dict[str, list[str] | None] | dict[str, list[FuzzyMatch]],
    truncations: dict[str, bool],
) -> HandlerReply:
    index = max((db.table_index(_CONTEXTS[name].table) for name in contexts), default=0)
    body = SearchResponse(matches=matches, truncations=truncations, index=index)
    return reply.read_reply(body, index)


def _place(request: Request, db: ReadSnapshot, namespace: str) -> _Place:
    requested_namespace = request.query.text("namespace") or namespace or DEFAULT_NAMESPACE
    names = [requested_namespace]
    if requested_namespace == EVERYWHERE:
        names = [namespace.name for namespace in namespaces.list_all(db)]
    return _Place(request, db, request.caller.grant, names)


# --- access ---


def _open(scope: _Place, context: str) -> list[str]:
    """Return the contexts to search. Raises `Denied`, or `Refused` for an unknown context."""
    is_open = [name for name in _CONTEXTS if _may(scope, name)]
    if not is_open or (context in _CONTEXTS and context not in is_open):
        raise Denied
    if context == "all":
        return is_open
    if context not in _CONTEXTS:
        raise Refused(
            f"context must be one of [{' '.join(_CONTEXTS)}] or 'all' for all contexts; "
            f'got "{context}"'
        )
    return [context]


def _may(scope: _Place, context: str) -> bool:
    match context:
        case "nodes":
            return scope.grant.may_in("node", "read")
        case "node_pools":
            return bool(visible_pools(scope.request, scope.db))
        case "namespaces":
            return any(scope.grant.knows(name) for name in scope.namespaces)
        case "plugins":
            return scope.grant.may_in("plugin", "list")
        case "scaling_policy":
            return bool(scope.where("list-scaling-policies"))
        case "host_volumes":
            return bool(scope.where("host-volume-read"))
        case _ if context in _JOB_READERS:
            return bool(scope.where("read-job"))
        case _:  # volumes
            return bool(scope.where("csi-list-volume", "csi-read-volume", "read-job"))


# --- search by identifier ---


def _may_begin_id(prefix: str) -> bool:
    """Return whether an identifier can begin with a prefix.

    If the number of digits is odd, the last digit is ignored.
    """
    is_odd = len(prefix.replace("-", "")) % 2
    try:
        check_prefix("", prefix[:-1] if is_odd else prefix)
    except Refused:
        return False
    return True


def _rows(table: str) -> Callable[[_Place, str], Iterable[str]]:
    def beginning(scope: _Place, prefix: str) -> Iterable[str]:
        names = scope.where("read-job")
        return search.ids_with_prefix(scope.db, table, names, prefix, MOST_PREFIX + 1)

    return beginning


def _nothing(scope: _Place, prefix: str) -> Iterable[str]:
    return ()


def _nodes(scope: _Place, prefix: str) -> Iterable[str]:
    return [node.id for node in nodes.list_readable(scope.db) if node.id.startswith(prefix)]


def _pools(scope: _Place, prefix: str) -> Iterable[str]:
    pools = visible_pools(scope.request, scope.db)
    return [pool.name for pool in pools if pool.name.startswith(prefix)]


def _policies(scope: _Place, prefix: str) -> Iterable[str]:
    names = scope.where("list-scaling-policies")
    policy_ids = [placed.policy.id for name in names for placed in scaling.policies(scope.db, name)]
    return sorted(line for line in policy_ids if line.startswith(prefix))


def _variables(scope: _Place, prefix: str) -> Iterable[str]:
    return (path for _, path in _paths(scope, prefix))


def _paths(scope: _Place, prefix: str = "") -> Iterator[tuple[str, str]]:
    sees = scope.grant.may_with_variable
    for name in scope.namespaces:
        for entry in variables.page(scope.db, PageRequest(namespace=name, prefix=prefix)):
            if sees(entry.namespace, entry.path, "list"):
                yield entry.namespace, entry.path


def _namespaces(scope: _Place, prefix: str) -> Iterable[str]:
    readable = namespaces.page(scope.db, PageRequest(namespace="*", prefix=prefix))
    return (namespace.name for namespace in readable if scope.grant.knows(namespace.name))


# --- search by name ---


def _best_matches(
    candidates: Iterable[tuple[str, FuzzyMatch]], text: str
) -> dict[str, list[FuzzyMatch]]:
    """Return the best matches by kind, at most one more than a response has.

    They are sorted by the text's position, the name's length, and the name.
    """
    by_kind: dict[str, list[FuzzyMatch]] = {}

    def order(match: FuzzyMatch) -> tuple[int, int, str, list[str]]:
        return match.id.lower().find(text), len(match.id), match.id, match.scope or []

    for kind, match in candidates:
        matches = by_kind.setdefault(kind, [])
        matches.append(match)
        if len(matches) > _MOST_UNSORTED:
            matches.sort(key=order)
            del matches[MOST_FUZZY + 1 :]
    return {kind: sorted(matches, key=order)[: MOST_FUZZY + 1] for kind, matches in by_kind.items()}


def _named_jobs(job_scope: _Place, text: str) -> Iterator[tuple[str, FuzzyMatch]]:
    view = mask_view()
    # A mask hides the stored text, and can contain the requested text.
    stored = text if view is None else ""
    for job in search.job_names(job_scope.db, job_scope.where("read-job"), stored):
        for kind, plain, *scope in _names_inside(job):
            name = plain if view is None else view.text((job.namespace, job.id), plain)
            if text in name.lower():
                yield kind, FuzzyMatch(id=name, scope=scope)


def _names_inside(job: JobNames) -> Iterator[tuple[str, ...]]:
    """Yield a tuple for each name in a job: its kind, the name, and the scope of the name.

    The scope is the namespace and the job ID, followed by the group and the task if the name is
    inside them.
    """
    outside = (job.namespace, job.id)
    yield "jobs", job.name, *outside
    for group in job.task_groups or ():
        yield "groups", group.name, *outside
        yield from _services(group.services, *outside, group.name)
        for task in group.tasks or ():
            yield "tasks", task.name, *outside, group.name
            yield from _services(task.services, *outside, group.name, task.name)
            key, kind = _PROGRAMS.get(canonical(task.driver or ""), ("", ""))
            program = (task.config or {}).get(key)
            if isinstance(program, str):
                yield kind, program, *outside, group.name, task.name


def _services(services: Iterable[ServiceName] | None, *scope: str) -> Iterator[tuple[str, ...]]:
    for service in services or ():
        if service.name:
            yield "services", service.name, *scope


def _named_allocations(scope: _Place, text: str) -> Iterator[tuple[str, FuzzyMatch]]:
    names = scope.where("read-job")
    for namespace, id_, name in search.allocation_names(scope.db, names, text, MOST_FUZZY + 1):
        yield "allocs", FuzzyMatch(id=name, scope=[namespace, id_])


def _named_nodes(scope: _Place, text: str) -> Iterator[tuple[str, FuzzyMatch]]:
    for node in nodes.list_readable(scope.db):
        if text in node.name.lower():
            yield "nodes", FuzzyMatch(id=node.name, scope=[node.id])


def _named_variables(scope: _Place, text: str) -> Iterator[tuple[str, FuzzyMatch]]:
    for namespace, path in _paths(scope):
        if text in path.lower():
            yield "vars", FuzzyMatch(id=path, scope=[namespace, path])


def _named(
    kind: str, names: Callable[[_Place, str], Iterable[str]]
) -> Callable[[_Place, str], Iterator[tuple[str, FuzzyMatch]]]:
    """Return a search for objects whose identifier is their name."""

    def found(scope: _Place, text: str) -> Iterator[tuple[str, FuzzyMatch]]:
        for name in names(scope, ""):
            if text in name.lower():
                yield kind, FuzzyMatch(id=name)

    return found


def _host_volumes(scope: _Place, prefix: str) -> Iterator[str]:
    return (
        volume_name.id for volume_name in _volumes_of(scope) if volume_name.id.startswith(prefix)
    )


def _named_host_volumes(scope: _Place, text: str) -> Iterator[tuple[str, FuzzyMatch]]:
    for volume_name in _volumes_of(scope):
        if text in volume_name.name.lower():
            yield (
                "host_volumes",
                FuzzyMatch(id=volume_name.name, scope=[volume_name.namespace, volume_name.id]),
            )


def _volumes_of(scope: _Place) -> Iterator[host_volumes.VolumeName]:
    seen = scope.where("host-volume-read")
    return (name for name in host_volumes.names(scope.db) if name.namespace in seen)


_ALWAYS_LISTED = frozenset({"host_volumes"})  # listed in a fuzzy search even without a match
_CONTEXTS = {
    "allocs": _Context("allocations", _rows("allocations"), True, _named_allocations),
    "jobs": _Context("jobs", _rows("jobs"), False, _named_jobs),
    "nodes": _Context("nodes", _nodes, True, _named_nodes),
    "node_pools": _Context("node_pools", _pools, False, _named("node_pools", _pools)),
    "evals": _Context("evaluations", _rows("evaluations"), True),
    "deployment": _Context("deployments", _rows("deployments"), True),
    "plugins": _Context("plugins", _nothing, False, _named("plugins", _nothing)),
    "volumes": _Context("volumes", _nothing),
    "scaling_policy": _Context("scaling_policies", _policies),
    "vars": _Context("variables", _variables, False, _named_variables),
    "namespaces": _Context("namespaces", _namespaces, False, _named("namespaces", _namespaces)),
    "host_volumes": _Context("host_volumes", _host_volumes, False, _named_host_volumes),
}
