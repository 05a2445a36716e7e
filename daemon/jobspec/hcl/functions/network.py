"""Functions on IP address ranges."""

import ipaddress
from ipaddress import IPv4Network, IPv6Network

from daemon.jobspec.hcl.functions.registry import function, number, text, text_list, whole_number
from daemon.jobspec.hcl.scope import FunctionFault, HclFunction
from daemon.jobspec.hcl.values import Value

_Network = IPv4Network | IPv6Network
_MAX_NEW_BITS = 32


def _network(prefix: str) -> _Network:
    try:
        network = ipaddress.ip_network(prefix, strict=False)
    except ValueError:
        network = None
    if network is None or "/" not in prefix:
        raise FunctionFault(f"invalid CIDR expression: invalid CIDR address: {prefix}")
    return network


def _host(prefix: str, position: Value) -> Value:
    network, host_number = _network(prefix), whole_number(position, "hostnum")
    count = network.num_addresses
    if not -count <= host_number < count:
        raise FunctionFault(
            f"prefix of {network.prefixlen} does not accommodate a host numbered {host_number}"
        )
    return str(network[host_number])


def _netmask(prefix: str) -> Value:
    return str(_network(prefix).netmask)


def _new_bits(network: _Network, value: Value) -> int:
    bits = whole_number(value, "newbits")
    if not 0 <= bits <= _MAX_NEW_BITS:
        raise FunctionFault(f"may not extend prefix by {bits} bits; 0 to 32 are possible")
    if network.prefixlen + bits > network.max_prefixlen:
        raise FunctionFault(
            f"insufficient address space to extend prefix of {network.prefixlen} by {bits}"
        )
    return bits


def _subnet(prefix: str, extension: Value, position: Value) -> Value:
    network = _network(prefix)
    bits, subnet_number = _new_bits(network, extension), whole_number(position, "netnum")
    if not 0 <= subnet_number < 1 << bits:
        raise FunctionFault(
            f"prefix extension of {bits} does not accommodate a subnet numbered {subnet_number}"
        )
    return str(
        _within(network, bits, subnet_number << (network.max_prefixlen - network.prefixlen - bits))
    )


def _within(network: _Network, bits: int, offset: int) -> _Network:
    address = network.network_address + offset
    return ipaddress.ip_network((address, network.prefixlen + bits))


def _subnets(prefix: str, *extensions: Value) -> Value:
    network = _network(prefix)
    offset, subnets = 0, []
    for extension in extensions:
        bits = _new_bits(network, extension)
        if bits < 1:
            raise FunctionFault("must extend prefix by at least one bit")
        size = 1 << (network.max_prefixlen - network.prefixlen - bits)
        offset = -(-offset // size) * size
        if offset + size > network.num_addresses:
            raise FunctionFault(
                "not enough remaining address space for a subnet with a prefix of "
                f"{network.prefixlen + bits} bits"
            )
        subnets.append(str(_within(network, bits, offset)))
        offset += size
    return text_list(subnets)


FUNCTIONS: dict[str, HclFunction] = {
    "cidrhost": function(_host, text("prefix"), number("hostnum")),
    "cidrnetmask": function(_netmask, text("prefix")),
    "cidrsubnet": function(_subnet, text("prefix"), number("newbits"), number("netnum")),
    "cidrsubnets": function(_subnets, text("prefix"), rest=number("newbits")),
}
