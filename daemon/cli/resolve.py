"""From what a person types to the one thing that is meant: short identifiers and prefixes.

Anything that begins only one identifier is enough; what is ambiguous is answered with a list.
"""

from collections.abc import Iterable

from daemon.cli.answers import AllocationLine, JobLine, NodeLine, ShownAllocation
from daemon.cli.client import Client, Rejected, segment
from daemon.wording import several
from storage.errors import Invalid, NotFound
from storage.records.acl_views import TokenStub
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation
from storage.records.node import Node

_UUID = 36  # characters
_ACCESSOR = 24  # characters of one of the secrets side; those of the jobs side have more
_LISTED = 10  # of those that an ambiguous prefix could mean


def job(client: Client, given: str) -> JobLine:
    """Return the job whose identifier is, or begins with, what is given.

    Raises `NotFound`, or `Invalid` when it could mean several.
    """
    lines = client.fetch("/v1/jobs", list[JobLine], prefix=given)
    exact = [line for line in lines if line.id == given]
    found = exact or lines
    if not found:
        where = f" in namespace {client.namespace!r}" if client.namespace else ""
        raise NotFound(f'no job is called {given!r}{where}; list them with "steward job status"')
    if len(found) > 1:
        raise _ambiguous("job", given, [f"{line.id} ({line.namespace})" for line in found])
    return found[0]


def allocation(client: Client, given: str) -> ShownAllocation:
    """Return the allocation whose identifier begins with what is given. Raises as `job` does."""
    identifier = given.lower()
    if len(identifier) != _UUID:
        identifier = _allocation_id(client, identifier)
    return client.fetch(f"/v1/allocation/{segment(identifier)}", ShownAllocation, retry=True)


def _allocation_id(client: Client, prefix: str) -> str:
    lines = client.fetch(
        "/v1/allocations",
        list[AllocationLine],
        prefix=_even(prefix),
        namespace=client.namespace or "*",
        task_states=False,
    )
    identifiers = {line.id: f"{line.id} ({line.name})" for line in lines}
    return _only("allocation", prefix, identifiers, "steward alloc status")


def deployment(client: Client, given: str) -> Deployment:
    """Return the deployment whose identifier begins with what is given. Raises as `job` does."""
    lines = client.fetch(
        "/v1/deployments",
        list[Deployment],
        prefix=_even(given.lower()),
        namespace=client.namespace or "*",
    )
    described = {line.id: f"{line.id} ({line.job_id})" for line in lines}
    found = _only("deployment", given.lower(), described, "steward deployment list")
    return next(line for line in lines if line.id == found)


def evaluation(client: Client, given: str) -> Evaluation:
    """Return the evaluation whose identifier begins with what is given. Raises as `job` does."""
    lines = client.fetch(
        "/v1/evaluations",
        list[Evaluation],
        prefix=_even(given.lower()),
        namespace=client.namespace or "*",
    )
    described = {line.id: f"{line.id} ({line.job_id})" for line in lines}
    found = _only("evaluation", given.lower(), described, "steward eval list")
    return next(line for line in lines if line.id == found)


def node_id(client: Client, given: str) -> str:
    """Return the identifier of a node that begins with what is given, or of that name."""
    lines = client.fetch("/v1/nodes", list[NodeLine])
    for line in lines:
        if given in (line.id, line.name):
            return line.id
    identifiers = {line.id: f"{line.id} ({line.name})" for line in lines}
    return _only("node", given.lower(), identifiers, "steward node status")


def node(client: Client, given: str) -> Node:
    """Return the node whose identifier begins with what is given, or of that name."""
    return client.fetch(f"/v1/node/{segment(node_id(client, given))}", Node)


def accessor(client: Client, given: str) -> str:
    """Return the accessor of a token that begins with what is given. Raises `Invalid` for several.

    What begins none is returned as it is, for it may be a secret: it is compared here, and sent
    nowhere. So is what is given where the tokens may not be listed: then it must be whole.
    """
    if not given or len(given) >= _ACCESSOR:
        return given
    try:
        stubs = client.fetch("/v1/acl/tokens", list[TokenStub])
    except Rejected:
        return given
    found = {one.accessor_id: one.name for one in stubs if one.accessor_id.startswith(given)}
    if given in found or not found:
        return given
    if len(found) > 1:
        raise _ambiguous("token", given, [f"{one} ({name})" for one, name in found.items()])
    return next(iter(found))


def may_be_identifier(prefix: str) -> bool:
    """Tell whether an identifier can begin like this."""
    try:
        int(prefix.replace("-", "") or "0", 16)
    except ValueError:
        return False
    return True


def _even(prefix: str) -> str:
    """Return as much of a prefix as the daemon accepts: an even number of hexadecimal digits."""
    digits = prefix.replace("-", "")
    if not may_be_identifier(prefix):
        raise Invalid(
            f"{prefix!r} does not begin an identifier: those have digits and the letters a to f; "
            'for the allocations of a job use -job or "steward job status"'
        )
    return prefix[:-1] if len(digits) % 2 else prefix


def _only(noun: str, prefix: str, described: dict[str, str], listing: str) -> str:
    found = [identifier for identifier in described if identifier.startswith(prefix)]
    if not found:
        raise NotFound(f'no {noun} begins with {prefix!r}; list them with "{listing}"')
    if len(found) > 1:
        raise _ambiguous(noun, prefix, [described[one] for one in found])
    return found[0]


def _ambiguous(noun: str, given: str, candidates: Iterable[str]) -> Invalid:
    found = list(candidates)
    listed = "\n  ".join(found[:_LISTED])
    more = f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return Invalid(
        f"{given!r} begins {several(len(found), noun)}; give more of it:\n  {listed}{more}"
    )
