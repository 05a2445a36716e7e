"""Workload identities of tasks and services."""

from daemon.jobspec.decode.schema import (
    BlockSchema,
    plain_duration,
    plain_flag,
    plain_text,
    text_list,
)

IDENTITY = BlockSchema(
    {
        **plain_text("name", "change_mode", "change_signal", "filepath", "service_name"),
        **plain_flag("env", "file"),
        **plain_duration("ttl"),
        **text_list("extra_claims", aud="Audience"),
    }
)
