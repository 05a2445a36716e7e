"""Services: where each instance of a service answers."""

from enum import StrEnum

import msgspec

from storage.records.base import Record


class Registration(Record, frozen=True, kw_only=True):
    """One instance of a service, registered while its allocation runs."""

    id: str
    service_name: str
    namespace: str
    node_id: str
    datacenter: str
    job_id: str
    alloc_id: str
    tags: list[str] = []
    address: str
    port: int
    create_index: int = 0
    modify_index: int = 0


class Offer(msgspec.Struct, frozen=True):
    """A registration, and whether its checks pass; None: they have not found out yet."""

    registration: Registration
    ready: bool | None


class ServiceLine(Record, frozen=True, kw_only=True):
    """A service in a listing, with the tags of all its instances."""

    service_name: str
    tags: list[str]


class NamespaceServices(Record, frozen=True, kw_only=True):
    """The services of a namespace in a listing."""

    namespace: str
    services: list[ServiceLine]


class CheckStatus(StrEnum):
    """What a check found last."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class CheckResult(Record, frozen=True, kw_only=True):
    """What a check of a service found last; the time in seconds."""

    id: str
    mode: str  # healthiness, or readiness when it says nothing about the allocation
    status: CheckStatus
    status_code: int = 0
    output: str = ""
    timestamp: int = 0
    group: str
    task: str = ""
    service: str
    check: str
