"""Policies that a job has for all its groups, or a group for itself: restart, update and so on."""

from daemon.jobspec.decode.shapes import (
    Shape,
    optional_duration,
    optional_flag,
    optional_integer,
    optional_text,
)

RESTART = Shape(
    {
        **optional_integer("attempts"),
        **optional_duration("interval", "delay"),
        **optional_text("mode"),
        **optional_flag("render_templates"),
    }
)
RESCHEDULE = Shape(
    {
        **optional_integer("attempts"),
        **optional_duration("interval", "delay", "max_delay"),
        **optional_text("delay_function"),
        **optional_flag("unlimited"),
    }
)
UPDATE = Shape(
    {
        **optional_duration("stagger", "min_healthy_time", "healthy_deadline", "progress_deadline"),
        **optional_integer("max_parallel", "canary"),
        **optional_text("health_check"),
        **optional_flag("auto_revert", "auto_promote"),
    }
)
MIGRATE = Shape(
    {
        **optional_integer("max_parallel"),
        **optional_text("health_check"),
        **optional_duration("min_healthy_time", "healthy_deadline"),
    }
)
DISCONNECT = Shape(
    {
        **optional_duration("lost_after", "stop_on_client_after"),
        **optional_flag("replace"),
        **optional_text("reconcile"),
    }
)
