"""Service mesh: sidecars and gateways of services."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    FieldSpec,
    FreeForm,
    TextMap,
    optional_duration,
    optional_integer,
    plain_flag,
    plain_integer,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.identity import IDENTITY
from daemon.jobspec.decode.tables.resources import LOGS, RESOURCES, VOLUME_MOUNTS
from daemon.jobspec.decode.types import ports

_UPSTREAM = BlockSchema(
    {
        **plain_text("destination_name", "destination_namespace", "destination_partition"),
        **plain_text("destination_peer", "destination_type", "datacenter"),
        **plain_text("local_bind_address", "local_bind_socket_mode", "local_bind_socket_path"),
        **plain_integer("local_bind_port"),
    },
    {
        "config": FreeForm("Config"),
        "mesh_gateway": ChildBlock("MeshGateway", BlockSchema(plain_text("mode"))),
    },
)
_EXPOSED_PATH = BlockSchema(
    {**plain_text("path", "protocol", "listener_port"), **plain_integer("local_path_port")}
)
_EXPOSE = BlockSchema(
    blocks={"path": ChildBlock("Paths", _EXPOSED_PATH, form=BlockForm.MANY)}, always={"Path": None}
)
_TRANSPARENT_PROXY = BlockSchema(
    {
        **plain_text(uid="UID"),
        **plain_integer("outbound_port"),
        **text_list("exclude_inbound_ports"),
        **text_list(exclude_outbound_cidrs="ExcludeOutboundCIDRs", exclude_uids="ExcludeUIDs"),
        "exclude_outbound_ports": FieldSpec("ExcludeOutboundPorts", ports),
        **plain_flag("no_dns"),
    }
)
_PROXY = BlockSchema(
    {**plain_text("local_service_address"), **plain_integer("local_service_port")},
    {
        "upstreams": ChildBlock("Upstreams", _UPSTREAM, form=BlockForm.MANY),
        "expose": ChildBlock("Expose", _EXPOSE),
        "transparent_proxy": ChildBlock("TransparentProxy", _TRANSPARENT_PROXY),
        "config": FreeForm("Config"),
    },
    always={"ExposeConfig": None},
)
_SIDECAR_SERVICE = BlockSchema(
    {
        **plain_text("port"),
        **text_list("tags"),
        **plain_flag(disable_default_tcp_check="DisableDefaultTCPCheck"),
    },
    {"meta": TextMap("Meta"), "proxy": ChildBlock("Proxy", _PROXY)},
)
_SIDECAR_TASK = BlockSchema(
    {
        **plain_text("name", "driver", "user", "kill_signal"),
        **optional_duration("kill_timeout", "shutdown_delay"),
    },
    {
        "config": FreeForm("Config"),
        "env": TextMap("Env"),
        "meta": TextMap("Meta"),
        "identity": ChildBlock("Identities", IDENTITY, form=BlockForm.MANY),
        **LOGS,
        **RESOURCES,
        **VOLUME_MOUNTS,
    },
)

# --- gateways ---

_BIND_ADDRESS = BlockSchema({**plain_text("address"), **plain_integer("port")}, always={"Name": ""})
_GATEWAY_PROXY = BlockSchema(
    {
        **optional_duration("connect_timeout"),
        **plain_flag("envoy_gateway_bind_tagged_addresses", "envoy_gateway_no_default_bind"),
        **plain_text("envoy_dns_discovery_type"),
    },
    {
        "envoy_gateway_bind_addresses": ChildBlock(
            "EnvoyGatewayBindAddresses", _BIND_ADDRESS, ("Name",), BlockForm.BY_LABEL
        ),
        "config": FreeForm("Config"),
    },
)
_TLS = BlockSchema(
    {
        **plain_flag("enabled"),
        **plain_text(tls_min_version="TLSMinVersion", tls_max_version="TLSMaxVersion"),
        **text_list("cipher_suites"),
    },
    {"sds": ChildBlock("SDS", BlockSchema(plain_text("cluster_name", "cert_resource")))},
)
_HEADERS = BlockSchema(text_list("remove"), {"add": TextMap("Add"), "set": TextMap("Set")})
_INGRESS_SERVICE = BlockSchema(
    {
        **plain_text("name"),
        **text_list("hosts"),
        **optional_integer("max_connections", "max_pending_requests", "max_concurrent_requests"),
    },
    {
        "tls": ChildBlock("TLS", _TLS),
        "request_headers": ChildBlock("RequestHeaders", _HEADERS),
        "response_headers": ChildBlock("ResponseHeaders", _HEADERS),
    },
)
_LISTENER = BlockSchema(
    {**plain_integer("port"), **plain_text("protocol")},
    {"service": ChildBlock("Services", _INGRESS_SERVICE, form=BlockForm.MANY)},
)
_INGRESS = BlockSchema(
    blocks={
        "tls": ChildBlock("TLS", _TLS),
        "listener": ChildBlock("Listeners", _LISTENER, form=BlockForm.MANY),
    }
)
_LINKED_SERVICE = BlockSchema(
    plain_text("name", ca_file="CAFile", cert_file="CertFile", key_file="KeyFile", sni="SNI")
)
_TERMINATING = BlockSchema(
    blocks={"service": ChildBlock("Services", _LINKED_SERVICE, form=BlockForm.MANY)}
)
_GATEWAY = BlockSchema(
    blocks={
        "proxy": ChildBlock("Proxy", _GATEWAY_PROXY),
        "ingress": ChildBlock("Ingress", _INGRESS),
        "terminating": ChildBlock("Terminating", _TERMINATING),
        "mesh": ChildBlock("Mesh", BlockSchema()),
    }
)

CONNECT = BlockSchema(
    plain_flag("native"),
    {
        "gateway": ChildBlock("Gateway", _GATEWAY),
        "sidecar_service": ChildBlock("SidecarService", _SIDECAR_SERVICE),
        "sidecar_task": ChildBlock("SidecarTask", _SIDECAR_TASK),
    },
)
