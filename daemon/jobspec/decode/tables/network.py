"""Networks of groups, and of tasks in older files."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    TextMap,
    optional_integer,
    plain_flag,
    plain_integer,
    plain_text,
    text_list,
)

_PORT = BlockSchema(
    {
        **plain_integer("to", static="Value"),
        **plain_text("host_network"),
        **plain_flag("ignore_collision"),
    },
    always={"Label": ""},
)


def _finish(decoded_block: DecodedBlock) -> None:
    """Separate static ports from dynamic ports."""
    document = decoded_block.document
    ports = document["DynamicPorts"] or []
    reserved = [*(document["ReservedPorts"] or ()), *[port for port in ports if port["Value"] > 0]]
    document["ReservedPorts"] = reserved or None
    document["DynamicPorts"] = [port for port in ports if port["Value"] <= 0] or None


_NETWORK = BlockSchema(
    {
        **plain_text("mode", "device", "cidr", "ip", "hostname"),
        **optional_integer("mbits"),
    },
    {
        "dns": ChildBlock("DNS", BlockSchema(text_list("servers", "searches", "options"))),
        "cni": ChildBlock(
            "CNI", BlockSchema(blocks={"args": TextMap("Args", may_be_argument=True)})
        ),
        "port": ChildBlock("DynamicPorts", _PORT, ("Label",), BlockForm.MANY),
        "reserved_ports": ChildBlock("ReservedPorts", _PORT, ("Label",), BlockForm.MANY),
    },
    finish=_finish,
)

NETWORK = {"network": ChildBlock("Networks", _NETWORK, form=BlockForm.MANY)}
