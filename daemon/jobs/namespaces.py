"""Namespaces: create, update, delete, and check the restrictions on jobs.

Texts and the order of checks are Nomad's (source: Nomad's recorded responses `namespaces`).
"""

import base64
import hashlib
import re
from collections.abc import Iterator

import msgspec

from daemon.text.go_format import format_list, multi_error, quote
from storage.errors import Invalid, Refused
from storage.queries import namespaces
from storage.records.driver import is_listed
from storage.records.job import Job
from storage.records.namespace import Namespace, NamespaceCapabilities
from storage.store import Store
from storage.writer import Transaction

DEFAULT = "default"
_NAME = re.compile(r"[a-zA-Z0-9-]{1,128}")
_MAX_DESCRIPTION = 256
_NO_LIMITS = NamespaceCapabilities()


async def apply(store: Store, namespace: Namespace) -> int:
    """Create or update a namespace; return the index of the write. Raises `Invalid`."""
    if faults := list(_faults(namespace)):
        raise Invalid(f"Invalid namespace {quote(namespace.name)}: {multi_error(faults)}")
    complete = msgspec.structs.replace(namespace, hash=namespace_hash(namespace))

    def write(tx: Transaction) -> int:
        namespaces.put(tx, complete)
        return tx.index

    return await store.write(write)


def _faults(namespace: Namespace) -> Iterator[str]:
    if not _NAME.fullmatch(namespace.name):
        yield f"invalid name {quote(namespace.name)}. Must match regex ^[a-zA-Z0-9-]{{1,128}}$"
    if len(namespace.description.encode()) > _MAX_DESCRIPTION:
        yield f"description longer than {_MAX_DESCRIPTION}"


async def remove(store: Store, name: str, region: str) -> int:
    """Delete an empty namespace; return the index of the write. Raises `Refused`."""

    def write(tx: Transaction) -> int:
        if name == DEFAULT:
            raise Refused("can not delete default namespace")
        if not namespaces.exists(tx, name):
            raise Refused("namespace not found")
        if reasons := namespaces.in_use(tx, name):
            raise Refused(
                multi_error(
                    [
                        f'namespace "{name}" has {reason} in regions: [{region}]'
                        for reason in reasons
                    ]
                )
            )
        namespaces.remove(tx, name)
        return tx.index

    return await store.write(write)


def namespace_hash(namespace: Namespace) -> str:
    """Return the hash that Nomad's clients expect; it changes with every user setting."""
    limits = namespace.capabilities or _NO_LIMITS
    pieces = [namespace.name, namespace.description, namespace.quota]
    for listed in msgspec.structs.astuple(limits):
        pieces += listed or ()
    for name, value in sorted((namespace.meta or {}).items()):
        pieces += name, value
    digest = hashlib.blake2b("".join(pieces).encode(), digest_size=32).digest()
    return base64.b64encode(digest).decode()


def forbidden_drivers(job: Job, namespace: Namespace) -> list[str]:
    """Return errors for the task drivers and network modes that a job's namespace forbids.

    There is at most one error for the drivers, and one for the modes.
    """
    limits = namespace.capabilities or _NO_LIMITS
    groups = job.task_groups or ()
    drivers = [task.driver for group in groups for task in group.tasks or ()]
    modes = [network.mode or "host" for group in groups for network in group.networks or ()]
    used = (
        ("task driver", drivers, limits.enabled_task_drivers, limits.disabled_task_drivers),
        ("group network mode", modes, limits.enabled_network_modes, limits.disabled_network_modes),
    )
    return [
        _refusal(kind, wrong, namespace.name)
        for kind, names, enabled, disabled in used
        if (wrong := [name for name in names if _is_out(name, enabled, disabled)])
    ]


def _is_out(name: str, enabled: list[str] | None, disabled: list[str] | None) -> bool:
    return bool((enabled and not is_listed(name, enabled)) or is_listed(name, disabled or ()))


def _refusal(noun: str, wrong: list[str], namespace: str) -> str:
    if len(wrong) == 1:
        return f"used {noun} {quote(wrong[0])} is not allowed in namespace {quote(namespace)}"
    listed = format_list(map(quote, wrong))
    return f"used {noun}s {listed} are not allowed in namespace {quote(namespace)}"
