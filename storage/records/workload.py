"""What an identity token says of a task, or of a service of it."""

import msgspec

AUDIENCE = "nomadproject.io"  # of the tokens that are for this API: the peer's clients know it


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The claims of an identity token; times are seconds. A child's job is its parent."""

    iss: str
    sub: str
    aud: list[str]
    iat: int
    nbf: int
    exp: int | None = None  # None: as long as the allocation lives
    jti: str
    nomad_namespace: str
    nomad_job_id: str
    nomad_allocation_id: str
    nomad_group: str
    nomad_task: str = ""  # empty: it is not the task that is meant but the service
    nomad_service: str = ""
