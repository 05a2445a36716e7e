"""Services: the addresses of their instances."""

from enum import StrEnum

import msgspec

from storage.records.base import Record


class Registration(Record, frozen=True, kw_only=True):
    """An instance of a service, registered while its allocation runs."""

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


class ServiceAddress(msgspec.Struct, frozen=True):
    """A registration. `ready` is true if its checks pass, and None until they have a result."""

    registration: Registration
    ready: bool | None


class ServiceListItem(Record, frozen=True, kw_only=True):
    """A service in a listing, with the tags of all its instances."""

    service_name: str
    tags: list[str]


class NamespaceServices(Record, frozen=True, kw_only=True):
    """The services of a namespace in a listing."""

    namespace: str
    services: list[ServiceListItem]


class CheckStatus(StrEnum):
    """The result of a check."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


# The prefix of the outputs that Steward itself writes (source: Nomad's checks).
OWN_OUTPUT = "nomad: "


class CheckResult(Record, frozen=True, kw_only=True):
    """The last result of a service check; its time is in seconds."""

    id: str
    mode: str  # healthiness, or readiness if it does not affect the allocation's health
    status: CheckStatus
    status_code: int = 0
    output: str = ""
    timestamp: int = 0
    group: str
    task: str = ""
    service: str
    check: str
