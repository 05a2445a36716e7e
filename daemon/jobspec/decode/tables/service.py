"""Services with their checks."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    TextMap,
    optional_duration,
    plain_duration,
    plain_flag,
    plain_integer,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.connect import CONNECT
from daemon.jobspec.decode.tables.identity import IDENTITY
from daemon.jobspec.decode.types import texts

_CHECK_RESTART = {
    "check_restart": ChildBlock(
        "CheckRestart",
        BlockSchema(
            {
                **plain_integer("limit"),
                **optional_duration("grace"),
                **plain_flag("ignore_warnings"),
            }
        ),
    )
}
_CHECK = BlockSchema(
    {
        **plain_text("name", "type", "command", "path", "protocol", "address_mode", "advertise"),
        **plain_text("initial_status", "notes", "method", "body", "on_update"),
        **plain_text("tls_server_name", "grpc_service", port="PortLabel", task="TaskName"),
        **text_list("args"),
        **plain_flag("expose", "tls_skip_verify", "grpc_use_tls"),
        **plain_duration("interval", "timeout"),
        **plain_integer("success_before_passing", "failures_before_critical"),
        **plain_integer("failures_before_warning"),
    },
    {"header": TextMap("Header", kind=texts), **_CHECK_RESTART},
)
_SERVICE = BlockSchema(
    {
        **plain_text("name", "address", "address_mode", "on_update", "provider", "cluster", "kind"),
        **plain_text(port="PortLabel", task="TaskName"),
        **text_list("tags", "canary_tags"),
        **plain_flag("enable_tag_override"),
    },
    {
        "meta": TextMap("Meta"),
        "canary_meta": TextMap("CanaryMeta"),
        "tagged_addresses": TextMap("TaggedAddresses"),
        "check": ChildBlock("Checks", _CHECK, form=BlockForm.MANY),
        "connect": ChildBlock("Connect", CONNECT),
        "identity": ChildBlock("Identity", IDENTITY),
        "weights": ChildBlock("Weights", BlockSchema(plain_integer("passing", "warning"))),
        **_CHECK_RESTART,
    },
)

SERVICE = {"service": ChildBlock("Services", _SERVICE, form=BlockForm.MANY)}
