"""The claims of a workload identity token, for a task or a service."""

import msgspec

AUDIENCE = "nomadproject.io"  # of tokens for this API, as Nomad's clients expect


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The claims of an identity token; times are in seconds since the epoch.

    For a child job, `nomad_job_id` is the ID of its parent.
    """

    iss: str
    sub: str
    aud: list[str]
    iat: int
    nbf: int
    exp: int | None = None  # None: valid as long as the allocation exists
    jti: str
    nomad_namespace: str
    nomad_job_id: str
    nomad_allocation_id: str
    nomad_group: str
    nomad_task: str = ""  # empty for the token of a service
    nomad_service: str = ""
