"""Diffs of blocks with nested blocks: those of jobs, groups and tasks."""

from functools import partial

from daemon.jobspec.diffs.flat import Flat, all_values, free_values, own_values
from daemon.jobspec.diffs.primitives import (
    BeforeAfter,
    Objects,
    block,
    by_key,
    changed_texts,
    changes,
    diff_each,
    pair_by_position,
    texts,
    values,
)
from storage.records.constraints import Affinity, Constraint, Spread
from storage.records.group import Disconnect, Volume
from storage.records.job import JobUI, Parameterized, Periodic
from storage.records.scaling import Scaling
from storage.records.task import (
    Action,
    Artifact,
    ChangeScript,
    Identity,
    Network,
    NetworkDNS,
    Port,
    Resources,
    Secret,
    Template,
    VolumeMount,
)

# --- common blocks ---


def constraints(both: BeforeAfter[list[Constraint]]) -> Objects:
    """Compare constraints. A changed constraint counts as one deleted and one added."""
    return diff_each(by_key(both), partial(values, "Constraint"))


def affinities(both: BeforeAfter[list[Affinity]]) -> Objects:
    """Compare affinities. A changed affinity counts as one deleted and one added."""
    return diff_each(by_key(both), partial(values, "Affinity"))


def spreads(both: BeforeAfter[list[Spread]]) -> Objects:
    """Compare spreads, matched by attribute."""
    return diff_each(by_key(both, lambda spread: spread.attribute), _spread)


def _spread(both: BeforeAfter[Spread]) -> Objects:
    targets = by_key(both.of(lambda spread: spread.spread_target), lambda target: target.value)
    return block("Spread", both, objects=diff_each(targets, partial(block, "SpreadTarget")))


# --- job blocks ---


def periodic(both: BeforeAfter[Periodic]) -> Objects:
    """Compare periodic schedules."""
    specs = changed_texts("Specs", both.of(lambda periodic: periodic.specs))
    return block("Periodic", both, objects=specs)


def parameterized(both: BeforeAfter[Parameterized]) -> Objects:
    """Compare parameters for dispatch."""
    meta = [
        *texts("MetaOptional", both.of(lambda parameterized: parameterized.meta_optional)),
        *texts("MetaRequired", both.of(lambda parameterized: parameterized.meta_required)),
    ]
    return block("ParameterizedJob", both, objects=meta)


def ui(both: BeforeAfter[JobUI]) -> Objects:
    """Compare settings for the web UI."""
    links = pair_by_position(both.of(lambda node: node.links))
    return block("UI", both, objects=diff_each(links, partial(block, "Link")))


# --- group blocks ---

# Fields that the server adds to a scaling policy.
_OF_POLICY = (
    *("ID", "Type", "CreateIndex", "ModifyIndex"),
    *("Target[Job]", "Target[Group]", "Target[Namespace]"),
)
_OF_NODE = ("Device", "CIDR", "IP", "MBits")  # fields that a node adds to a network


def disconnect(both: BeforeAfter[Disconnect]) -> Objects:
    """Compare the behavior of a group on disconnected nodes."""
    return block("Disconnect", both, flat=all_values)


def scaling(both: BeforeAfter[Scaling]) -> Objects:
    """Compare scaling policies; show only changed values."""
    free = both.of(lambda record: record.policy or {})
    policy = block("Policy", free, flat=free_values, show=changes) if free.old or free.new else []
    flat = partial(own_values, hidden=_OF_POLICY)
    return block("Scaling", both, flat=flat, objects=policy, show=changes)


def volumes(both: BeforeAfter[dict[str, Volume]]) -> Objects:
    """Compare volume requests, matched by name."""
    old, new = both.old or {}, both.new or {}
    return [
        block_diff
        for name in sorted({**old, **new})
        for block_diff in _volume(BeforeAfter(old.get(name), new.get(name)))
    ]


def _volume(both: BeforeAfter[Volume]) -> Objects:
    options = both.of(lambda volume: volume.mount_options)
    flags = texts("MountFlags", options.of(lambda mount_options: mount_options.mount_flags))
    return block("Volume", both, objects=block("MountOptions", options, objects=flags))


def networks(both: BeforeAfter[list[Network]]) -> Objects:
    """Compare networks. A network has no name, so a change counts as one deleted and one added."""
    return diff_each(by_key(both), _network)


def _network(both: BeforeAfter[Network]) -> Objects:
    args = both.of(lambda network: network.cni).of(lambda cni: cni.args)
    nested = [
        *_ports("Static Port", both.of(lambda network: network.reserved_ports)),
        *_ports(
            "Dynamic Port",
            both.of(lambda network: network.dynamic_ports),
            "Value",
            "IgnoreCollision",
        ),
        *block("DNS", both.of(lambda network: network.dns), flat=_name_servers),
        *values("CNIConfig", args, flat=free_values),
    ]
    return block("Network", both, flat=partial(own_values, hidden=_OF_NODE), objects=nested)


def _ports(name: str, both: BeforeAfter[list[Port]], *hidden: str) -> Objects:
    port_pairs = by_key(both, lambda port: port.label)
    return diff_each(port_pairs, partial(values, name, flat=partial(own_values, hidden=hidden)))


def _name_servers(dns: NetworkDNS) -> Flat:
    lists = {"Servers": dns.servers, "Searches": dns.searches, "Options": dns.options}
    return {name: ",".join(listed) for name, listed in lists.items() if listed}


# --- task blocks ---


def config(both: BeforeAfter[dict[str, object]]) -> Objects:
    """Compare driver configurations."""
    before_after = BeforeAfter(both.old or {}, both.new or {})
    return block("Config", before_after, flat=free_values)


def resources(both: BeforeAfter[Resources]) -> Objects:
    """Compare task resources."""
    devices = by_key(both.of(lambda resources: resources.devices), lambda device: device.name)
    nested = [
        *networks(both.of(lambda resources: resources.networks)),
        *diff_each(devices, partial(block, "Device")),
        *block("NUMA", both.of(lambda resources: resources.numa)),
    ]
    return block("Resources", both, objects=nested)


def artifacts(both: BeforeAfter[list[Artifact]]) -> Objects:
    """Compare artifacts, matched by destination."""
    artifact_pairs = by_key(both, lambda artifact: artifact.relative_dest)
    return diff_each(artifact_pairs, partial(values, "Artifact"))


def secrets(both: BeforeAfter[list[Secret]]) -> Objects:
    """Compare secrets, matched by name."""
    secret_pairs = by_key(both, lambda secret: secret.name)
    return diff_each(secret_pairs, partial(block, "Secret", flat=_with_config))


def _with_config(secret: Secret) -> Flat:
    return own_values(secret) | free_values({"Config": secret.config or {}})


def templates(both: BeforeAfter[list[Template]]) -> Objects:
    """Compare templates, matched by destination.

    If both versions have only one template, these two templates match.
    """
    old, new = both.old or [], both.new or []
    is_one = len(old) == len(new) == 1
    return diff_each(
        pair_by_position(both) if is_one else by_key(both, lambda template: template.dest_path),
        _template,
    )


def _template(both: BeforeAfter[Template]) -> Objects:
    nested = [
        # Nomad's name for a block called wait.
        *block("Template", both.of(lambda template: template.wait), flat=all_values),
        *_change_script(both.of(lambda template: template.change_script)),
    ]
    return block("Template", both, flat=_with_owner, objects=nested)


def _with_owner(template: Template) -> Flat:
    owner = {"Uid": template.uid, "Gid": template.gid}
    numbers = {name: str(number) for name, number in owner.items() if number is not None}
    return own_values(template) | numbers


def _change_script(both: BeforeAfter[ChangeScript]) -> Objects:
    return block("ChangeScript", both, objects=texts("Args", both.of(lambda script: script.args)))


def identity(both: BeforeAfter[Identity]) -> Objects:
    """Compare workload identities."""
    return block(
        "Identity",
        both,
        objects=texts("Audience", both.of(lambda workload_identity: workload_identity.audience)),
    )


def identities(both: BeforeAfter[list[Identity]]) -> Objects:
    """Compare named identities, matched by name."""
    return diff_each(by_key(both, lambda workload_identity: workload_identity.name), identity)


def actions(both: BeforeAfter[list[Action]]) -> Objects:
    """Compare actions, matched by name."""
    return diff_each(pair_by_position(both), _action)


def _action(both: BeforeAfter[Action]) -> Objects:
    return block("Action", both, objects=texts("Args", both.of(lambda action: action.args)))


def volume_mounts(both: BeforeAfter[list[VolumeMount]]) -> Objects:
    """Compare volume mounts."""
    return diff_each(pair_by_position(both), partial(block, "VolumeMount"))
