"""Networks of groups, and of tasks in older files."""

from daemon.jobspec.decode.shapes import (
    Child,
    Form,
    Found,
    Shape,
    TextMap,
    optional_integer,
    plain_flag,
    plain_integer,
    plain_text,
    text_list,
)

_PORT = Shape(
    {
        **plain_integer("to", static="Value"),
        **plain_text("host_network"),
        **plain_flag("ignore_collision"),
    },
    always={"Label": ""},
)


def _finish(found: Found) -> None:
    """Set the ports whose number is given apart from those that get any."""
    document = found.document
    ports = document["DynamicPorts"] or []
    reserved = [*(document["ReservedPorts"] or ()), *[port for port in ports if port["Value"] > 0]]
    document["ReservedPorts"] = reserved or None
    document["DynamicPorts"] = [port for port in ports if port["Value"] <= 0] or None


_NETWORK = Shape(
    {
        **plain_text("mode", "device", "cidr", "ip", "hostname"),
        **optional_integer("mbits"),
    },
    {
        "dns": Child("DNS", Shape(text_list("servers", "searches", "options"))),
        "cni": Child("CNI", Shape(blocks={"args": TextMap("Args", may_be_argument=True)})),
        "port": Child("DynamicPorts", _PORT, ("Label",), Form.MANY),
        "reserved_ports": Child("ReservedPorts", _PORT, ("Label",), Form.MANY),
    },
    finish=_finish,
)

NETWORK = {"network": Child("Networks", _NETWORK, form=Form.MANY)}
