"""Identity tokens, of tasks and of services."""

from daemon.jobspec.decode.shapes import (
    Shape,
    plain_duration,
    plain_flag,
    plain_text,
    text_list,
)

IDENTITY = Shape(
    {
        **plain_text("name", "change_mode", "change_signal", "filepath", "service_name"),
        **plain_flag("env", "file"),
        **plain_duration("ttl"),
        **text_list("extra_claims", aud="Audience"),
    }
)
