"""Blocks that hold more than values of their own: those of jobs, groups and tasks."""

from functools import partial

from daemon.jobspec.diffs.flat import Flat, all_values, free_values, own_values
from daemon.jobspec.diffs.parts import (
    Both,
    Objects,
    block,
    by_key,
    by_place,
    changed_texts,
    changes,
    each,
    texts,
    values,
)
from storage.records.group import Disconnect, Volume
from storage.records.job import JobUI, Parameterized, Periodic
from storage.records.scaling import Scaling
from storage.records.scope import Affinity, Constraint, Spread
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

# ---- everywhere -------------------------------------------------------------------------------------


def constraints(both: Both[list[Constraint]]) -> Objects:
    """Compare constraints: each is there or not."""
    return each(by_key(both), partial(values, "Constraint"))


def affinities(both: Both[list[Affinity]]) -> Objects:
    """Compare affinities: each is there or not."""
    return each(by_key(both), partial(values, "Affinity"))


def spreads(both: Both[list[Spread]]) -> Objects:
    """Compare spreads, by the attribute that they spread over."""
    return each(by_key(both, lambda one: one.attribute), _spread)


def _spread(both: Both[Spread]) -> Objects:
    targets = by_key(both.of(lambda one: one.spread_target), lambda target: target.value)
    return block("Spread", both, objects=each(targets, partial(block, "SpreadTarget")))


# ---- of a job ---------------------------------------------------------------------------------------


def periodic(both: Both[Periodic]) -> Objects:
    """Compare when a job is launched."""
    specs = changed_texts("Specs", both.of(lambda one: one.specs))
    return block("Periodic", both, objects=specs)


def parameterized(both: Both[Parameterized]) -> Objects:
    """Compare what a dispatch may bring along."""
    meta = [
        *texts("MetaOptional", both.of(lambda one: one.meta_optional)),
        *texts("MetaRequired", both.of(lambda one: one.meta_required)),
    ]
    return block("ParameterizedJob", both, objects=meta)


def ui(both: Both[JobUI]) -> Objects:
    """Compare what the web interface shows."""
    links = by_place(both.of(lambda one: one.links))
    return block("UI", both, objects=each(links, partial(block, "Link")))


# ---- of a group -------------------------------------------------------------------------------------

# What the server adds to a scaling policy.
_OF_POLICY = (
    *("ID", "Type", "CreateIndex", "ModifyIndex"),
    *("Target[Job]", "Target[Group]", "Target[Namespace]"),
)
_OF_NODE = ("Device", "CIDR", "IP", "MBits")  # what a node adds to a network


def disconnect(both: Both[Disconnect]) -> Objects:
    """Compare what happens when a node is out of reach."""
    return block("Disconnect", both, flat=all_values)


def scaling(both: Both[Scaling]) -> Objects:
    """Compare scaling policies; of these only what changed is shown."""
    free = both.of(lambda one: one.policy or {})
    policy = block("Policy", free, flat=free_values, show=changes) if free.old or free.new else []
    flat = partial(own_values, hidden=_OF_POLICY)
    return block("Scaling", both, flat=flat, objects=policy, show=changes)


def volumes(both: Both[dict[str, Volume]]) -> Objects:
    """Compare the volumes that a group may mount, by name."""
    old, new = both.old or {}, both.new or {}
    return [
        one
        for name in sorted({**old, **new})
        for one in _volume(Both(old.get(name), new.get(name)))
    ]


def _volume(both: Both[Volume]) -> Objects:
    options = both.of(lambda one: one.mount_options)
    flags = texts("MountFlags", options.of(lambda one: one.mount_flags))
    return block("Volume", both, objects=block("MountOptions", options, objects=flags))


def networks(both: Both[list[Network]]) -> Objects:
    """Compare networks: none has a name, so a changed one is another one."""
    return each(by_key(both), _network)


def _network(both: Both[Network]) -> Objects:
    args = both.of(lambda one: one.cni).of(lambda one: one.args)
    nested = [
        *_ports("Static Port", both.of(lambda one: one.reserved_ports)),
        *_ports("Dynamic Port", both.of(lambda one: one.dynamic_ports), "Value", "IgnoreCollision"),
        *block("DNS", both.of(lambda one: one.dns), flat=_name_servers),
        *values("CNIConfig", args, flat=free_values),
    ]
    return block("Network", both, flat=partial(own_values, hidden=_OF_NODE), objects=nested)


def _ports(name: str, both: Both[list[Port]], *hidden: str) -> Objects:
    known = by_key(both, lambda port: port.label)
    return each(known, partial(values, name, flat=partial(own_values, hidden=hidden)))


def _name_servers(dns: NetworkDNS) -> Flat:
    lists = {"Servers": dns.servers, "Searches": dns.searches, "Options": dns.options}
    return {name: ",".join(listed) for name, listed in lists.items() if listed}


# ---- of a task --------------------------------------------------------------------------------------


def config(both: Both[dict[str, object]]) -> Objects:
    """Compare what a driver is told."""
    told = Both(both.old or {}, both.new or {})
    return block("Config", told, flat=free_values)


def resources(both: Both[Resources]) -> Objects:
    """Compare what a task needs of its node."""
    devices = by_key(both.of(lambda one: one.devices), lambda device: device.name)
    nested = [
        *networks(both.of(lambda one: one.networks)),
        *each(devices, partial(block, "Device")),
        *block("NUMA", both.of(lambda one: one.numa)),
    ]
    return block("Resources", both, objects=nested)


def artifacts(both: Both[list[Artifact]]) -> Objects:
    """Compare what is fetched, by where it goes."""
    known = by_key(both, lambda one: one.relative_dest)
    return each(known, partial(values, "Artifact"))


def secrets(both: Both[list[Secret]]) -> Objects:
    """Compare secrets, by name."""
    known = by_key(both, lambda one: one.name)
    return each(known, partial(block, "Secret", flat=_with_config))


def _with_config(secret: Secret) -> Flat:
    return own_values(secret) | free_values({"Config": secret.config or {}})


def templates(both: Both[list[Template]]) -> Objects:
    """Compare templates, by the file that they make; where there is but one it is the same one."""
    old, new = both.old or [], both.new or []
    is_one = len(old) == len(new) == 1
    return each(by_place(both) if is_one else by_key(both, lambda one: one.dest_path), _template)


def _template(both: Both[Template]) -> Objects:
    nested = [
        # The peer's name for a block that is called wait.
        *block("Template", both.of(lambda one: one.wait), flat=all_values),
        *_change_script(both.of(lambda one: one.change_script)),
    ]
    return block("Template", both, flat=_with_owner, objects=nested)


def _with_owner(template: Template) -> Flat:
    owner = {"Uid": template.uid, "Gid": template.gid}
    known = {name: str(number) for name, number in owner.items() if number is not None}
    return own_values(template) | known


def _change_script(both: Both[ChangeScript]) -> Objects:
    return block("ChangeScript", both, objects=texts("Args", both.of(lambda one: one.args)))


def identity(both: Both[Identity]) -> Objects:
    """Compare signed identities."""
    return block("Identity", both, objects=texts("Audience", both.of(lambda one: one.audience)))


def identities(both: Both[list[Identity]]) -> Objects:
    """Compare further identities, by name."""
    return each(by_key(both, lambda one: one.name), identity)


def actions(both: Both[list[Action]]) -> Objects:
    """Compare commands to run on request."""
    return each(by_place(both), _action)


def _action(both: Both[Action]) -> Objects:
    return block("Action", both, objects=texts("Args", both.of(lambda one: one.args)))


def volume_mounts(both: Both[list[VolumeMount]]) -> Objects:
    """Compare where volumes appear."""
    return each(by_place(both), partial(block, "VolumeMount"))
