"""Resolution of names, short identifiers and prefixes to one object.

A unique prefix is enough. For an ambiguous prefix, the error lists the matching objects.
"""

from collections.abc import Iterable

from daemon.cli.core.http_client import ApiClient, RequestRejected, segment
from daemon.cli.core.responses import AllocationDetail, AllocationItem, JobListItem, NodeListItem
from daemon.text.placement_message import count_noun
from storage.errors import Invalid, NotFound
from storage.records.acl_views import TokenStub
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation
from storage.records.node import Node

_UUID = 36  # characters
_ACCESSOR = 24  # characters of an accessor of the Vault API; those of the jobs API have more
_COMPARED = 1000  # jobs with which a mistyped name is compared
_LISTED = 10  # candidates listed for an ambiguous prefix


def job(client: ApiClient, id_or_prefix: str) -> JobListItem:
    """Return the job with this identifier or unique prefix.

    Raises `NotFound`, or `Invalid` if the prefix is ambiguous.
    """
    lines = _named(client, id_or_prefix) or client.fetch(
        "/v1/jobs", list[JobListItem], prefix=id_or_prefix
    )
    if not lines:
        where = f" in namespace {client.namespace!r}" if client.namespace else ""
        similar = _near_job(client, id_or_prefix)
        remedy = f"did you mean {similar!r}?" if similar else 'list them with "steward job status"'
        raise NotFound(f"there is no job {id_or_prefix!r}{where}; {remedy}")
    if len(lines) > 1:
        raise _ambiguous("job", id_or_prefix, [f"{line.id} ({line.namespace})" for line in lines])
    return lines[0]


def _named(client: ApiClient, id_or_prefix: str) -> list[JobListItem]:
    """Return the jobs with exactly this identifier.

    A list of all jobs with this prefix may be very long, because it includes the job's children.
    """
    if not id_or_prefix.isprintable() or not {'"', "\\"}.isdisjoint(id_or_prefix):
        return []
    query = {"prefix": id_or_prefix, "filter": f'ID == "{id_or_prefix}"'}
    lines = client.fetch("/v1/jobs", list[JobListItem], **query)
    return [line for line in lines if line.id == id_or_prefix]


def _near_job(client: ApiClient, id_or_prefix: str) -> str:
    """Return the most similar name in the first page of jobs, or an empty string."""
    import difflib  # slow to import, and needed only here

    lines = client.fetch("/v1/jobs", list[JobListItem], per_page=_COMPARED)
    similar = difflib.get_close_matches(id_or_prefix, [line.id for line in lines], n=1)
    return similar[0] if similar else ""


def allocation(client: ApiClient, id_or_prefix: str) -> AllocationDetail:
    """Return the allocation with this ID prefix. Raises the same errors as `job`."""
    identifier = id_or_prefix.lower()
    if len(identifier) != _UUID:
        identifier = _allocation_id(client, identifier)
    return client.fetch(f"/v1/allocation/{segment(identifier)}", AllocationDetail, retry=True)


def _allocation_id(client: ApiClient, prefix: str) -> str:
    lines = client.fetch(
        "/v1/allocations",
        list[AllocationItem],
        prefix=_even_prefix(prefix, _FOR_ALLOCATIONS),
        namespace=client.namespace or "*",
        task_states=False,
    )
    identifiers = {line.id: f"{line.id} ({line.name})" for line in lines}
    return _single_match("allocation", prefix, identifiers, "steward alloc status")


def deployment(client: ApiClient, id_or_prefix: str) -> Deployment:
    """Return the deployment with this ID prefix. Raises the same errors as `job`."""
    lines = client.fetch(
        "/v1/deployments",
        list[Deployment],
        prefix=_even_prefix(id_or_prefix.lower()),
        namespace=client.namespace or "*",
    )
    described = {line.id: f"{line.id} ({line.job_id})" for line in lines}
    full_id = _single_match(
        "deployment", id_or_prefix.lower(), described, "steward deployment list"
    )
    return next(line for line in lines if line.id == full_id)


def evaluation(client: ApiClient, id_or_prefix: str) -> Evaluation:
    """Return the evaluation with this ID prefix. Raises the same errors as `job`."""
    lines = client.fetch(
        "/v1/evaluations",
        list[Evaluation],
        prefix=_even_prefix(id_or_prefix.lower()),
        namespace=client.namespace or "*",
    )
    described = {line.id: f"{line.id} ({line.job_id})" for line in lines}
    full_id = _single_match("evaluation", id_or_prefix.lower(), described, "steward eval list")
    return next(line for line in lines if line.id == full_id)


def node_id(client: ApiClient, id_or_prefix: str) -> str:
    """Return the ID of the node with this ID prefix or name."""
    lines = client.fetch("/v1/nodes", list[NodeListItem])
    for line in lines:
        if id_or_prefix in (line.id, line.name):
            return line.id
    identifiers = {line.id: f"{line.id} ({line.name})" for line in lines}
    return _single_match("node", id_or_prefix.lower(), identifiers, "steward node status")


def node(client: ApiClient, id_or_prefix: str) -> Node:
    """Return the node with this ID prefix or name."""
    return client.fetch(f"/v1/node/{segment(node_id(client, id_or_prefix))}", Node)


def accessor(client: ApiClient, id_or_prefix: str) -> str:
    """Return the accessor with this prefix. Raises `Invalid` if the prefix is ambiguous.

    An unknown text is returned unchanged. It may be a secret, so it is compared locally and not
    sent. It is also returned unchanged if the caller may not list tokens.
    """
    if not id_or_prefix or len(id_or_prefix) >= _ACCESSOR:
        return id_or_prefix
    try:
        stubs = client.fetch("/v1/acl/tokens", list[TokenStub])
    except RequestRejected:
        return id_or_prefix
    name_by_accessor = {
        stub.accessor_id: stub.name for stub in stubs if stub.accessor_id.startswith(id_or_prefix)
    }
    if id_or_prefix in name_by_accessor or not name_by_accessor:
        return id_or_prefix
    if len(name_by_accessor) > 1:
        raise _ambiguous(
            "token",
            id_or_prefix,
            [f"{token_accessor} ({name})" for token_accessor, name in name_by_accessor.items()],
        )
    return next(iter(name_by_accessor))


def may_be_identifier(prefix: str) -> bool:
    """Return whether an identifier can begin with this prefix."""
    try:
        int(prefix.replace("-", "") or "0", 16)
    except ValueError:
        return False
    return True


_FOR_ALLOCATIONS = '; for the allocations of a job use -job or "steward job status"'


def _even_prefix(prefix: str, advice: str = "") -> str:
    """Return the longest prefix that the daemon accepts: an even number of hexadecimal digits."""
    digits = prefix.replace("-", "")
    if not may_be_identifier(prefix):
        raise Invalid(
            f"{prefix!r} is not a prefix of an ID: IDs consist of digits and the letters a to f{advice}"
        )
    return prefix[:-1] if len(digits) % 2 else prefix


def _single_match(noun: str, prefix: str, described: dict[str, str], listing: str) -> str:
    matching_ids = [identifier for identifier in described if identifier.startswith(prefix)]
    if not matching_ids:
        raise NotFound(f'no {noun} begins with {prefix!r}; list them with "{listing}"')
    if len(matching_ids) > 1:
        raise _ambiguous(noun, prefix, [described[identifier] for identifier in matching_ids])
    return matching_ids[0]


def _ambiguous(noun: str, id_or_prefix: str, candidates: Iterable[str]) -> Invalid:
    matching = list(candidates)
    listed = "\n  ".join(matching[:_LISTED])
    more = f"\n  and {len(matching) - _LISTED} more" if len(matching) > _LISTED else ""
    return Invalid(
        f"{id_or_prefix!r} is a prefix of {count_noun(len(matching), noun)}; pass more of it:\n  {listed}{more}"
    )
