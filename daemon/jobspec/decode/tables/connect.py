"""The service mesh: what a service says of its sidecar or of its gateway."""

from daemon.jobspec.decode.kinds import ports
from daemon.jobspec.decode.shapes import (
    Child,
    Field,
    Form,
    FreeForm,
    Shape,
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

_UPSTREAM = Shape(
    {
        **plain_text("destination_name", "destination_namespace", "destination_partition"),
        **plain_text("destination_peer", "destination_type", "datacenter"),
        **plain_text("local_bind_address", "local_bind_socket_mode", "local_bind_socket_path"),
        **plain_integer("local_bind_port"),
    },
    {
        "config": FreeForm("Config"),
        "mesh_gateway": Child("MeshGateway", Shape(plain_text("mode"))),
    },
)
_EXPOSED_PATH = Shape(
    {**plain_text("path", "protocol", "listener_port"), **plain_integer("local_path_port")}
)
_EXPOSE = Shape(
    blocks={"path": Child("Paths", _EXPOSED_PATH, form=Form.MANY)}, always={"Path": None}
)
_TRANSPARENT_PROXY = Shape(
    {
        **plain_text(uid="UID"),
        **plain_integer("outbound_port"),
        **text_list("exclude_inbound_ports"),
        **text_list(exclude_outbound_cidrs="ExcludeOutboundCIDRs", exclude_uids="ExcludeUIDs"),
        "exclude_outbound_ports": Field("ExcludeOutboundPorts", ports),
        **plain_flag("no_dns"),
    }
)
_PROXY = Shape(
    {**plain_text("local_service_address"), **plain_integer("local_service_port")},
    {
        "upstreams": Child("Upstreams", _UPSTREAM, form=Form.MANY),
        "expose": Child("Expose", _EXPOSE),
        "transparent_proxy": Child("TransparentProxy", _TRANSPARENT_PROXY),
        "config": FreeForm("Config"),
    },
    always={"ExposeConfig": None},
)
_SIDECAR_SERVICE = Shape(
    {
        **plain_text("port"),
        **text_list("tags"),
        **plain_flag(disable_default_tcp_check="DisableDefaultTCPCheck"),
    },
    {"meta": TextMap("Meta"), "proxy": Child("Proxy", _PROXY)},
)
_SIDECAR_TASK = Shape(
    {
        **plain_text("name", "driver", "user", "kill_signal"),
        **optional_duration("kill_timeout", "shutdown_delay"),
    },
    {
        "config": FreeForm("Config"),
        "env": TextMap("Env"),
        "meta": TextMap("Meta"),
        "identity": Child("Identities", IDENTITY, form=Form.MANY),
        **LOGS,
        **RESOURCES,
        **VOLUME_MOUNTS,
    },
)

# ---- gateways ----------------------------------------------------------------------------------------

_BIND_ADDRESS = Shape({**plain_text("address"), **plain_integer("port")}, always={"Name": ""})
_GATEWAY_PROXY = Shape(
    {
        **optional_duration("connect_timeout"),
        **plain_flag("envoy_gateway_bind_tagged_addresses", "envoy_gateway_no_default_bind"),
        **plain_text("envoy_dns_discovery_type"),
    },
    {
        "envoy_gateway_bind_addresses": Child(
            "EnvoyGatewayBindAddresses", _BIND_ADDRESS, ("Name",), Form.BY_LABEL
        ),
        "config": FreeForm("Config"),
    },
)
_TLS = Shape(
    {
        **plain_flag("enabled"),
        **plain_text(tls_min_version="TLSMinVersion", tls_max_version="TLSMaxVersion"),
        **text_list("cipher_suites"),
    },
    {"sds": Child("SDS", Shape(plain_text("cluster_name", "cert_resource")))},
)
_HEADERS = Shape(text_list("remove"), {"add": TextMap("Add"), "set": TextMap("Set")})
_INGRESS_SERVICE = Shape(
    {
        **plain_text("name"),
        **text_list("hosts"),
        **optional_integer("max_connections", "max_pending_requests", "max_concurrent_requests"),
    },
    {
        "tls": Child("TLS", _TLS),
        "request_headers": Child("RequestHeaders", _HEADERS),
        "response_headers": Child("ResponseHeaders", _HEADERS),
    },
)
_LISTENER = Shape(
    {**plain_integer("port"), **plain_text("protocol")},
    {"service": Child("Services", _INGRESS_SERVICE, form=Form.MANY)},
)
_INGRESS = Shape(
    blocks={
        "tls": Child("TLS", _TLS),
        "listener": Child("Listeners", _LISTENER, form=Form.MANY),
    }
)
_LINKED_SERVICE = Shape(
    plain_text("name", ca_file="CAFile", cert_file="CertFile", key_file="KeyFile", sni="SNI")
)
_TERMINATING = Shape(blocks={"service": Child("Services", _LINKED_SERVICE, form=Form.MANY)})
_GATEWAY = Shape(
    blocks={
        "proxy": Child("Proxy", _GATEWAY_PROXY),
        "ingress": Child("Ingress", _INGRESS),
        "terminating": Child("Terminating", _TERMINATING),
        "mesh": Child("Mesh", Shape()),
    }
)

CONNECT = Shape(
    plain_flag("native"),
    {
        "gateway": Child("Gateway", _GATEWAY),
        "sidecar_service": Child("SidecarService", _SIDECAR_SERVICE),
        "sidecar_task": Child("SidecarTask", _SIDECAR_TASK),
    },
)
