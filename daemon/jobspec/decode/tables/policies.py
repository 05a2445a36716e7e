"""Policies of a group, or of a job for all its groups, such as restart and update."""

from daemon.jobspec.decode.schema import (
    BlockSchema,
    optional_duration,
    optional_flag,
    optional_integer,
    optional_text,
)

RESTART = BlockSchema(
    {
        **optional_integer("attempts"),
        **optional_duration("interval", "delay"),
        **optional_text("mode"),
        **optional_flag("render_templates"),
    }
)
RESCHEDULE = BlockSchema(
    {
        **optional_integer("attempts"),
        **optional_duration("interval", "delay", "max_delay"),
        **optional_text("delay_function"),
        **optional_flag("unlimited"),
    }
)
UPDATE = BlockSchema(
    {
        **optional_duration("stagger", "min_healthy_time", "healthy_deadline", "progress_deadline"),
        **optional_integer("max_parallel", "canary"),
        **optional_text("health_check"),
        **optional_flag("auto_revert", "auto_promote"),
    }
)
MIGRATE = BlockSchema(
    {
        **optional_integer("max_parallel"),
        **optional_text("health_check"),
        **optional_duration("min_healthy_time", "healthy_deadline"),
    }
)
DISCONNECT = BlockSchema(
    {
        **optional_duration("lost_after", "stop_on_client_after"),
        **optional_flag("replace"),
        **optional_text("reconcile"),
    }
)
