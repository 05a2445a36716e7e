"""Defaults common to several levels: empty collections, weights, networks and scaling."""

from collections.abc import Collection

from storage.records.codec import Document

DEFAULT_WEIGHT = 50  # weight of affinities and spreads

# Free-form maps. Any other object is a block, and a block without arguments still exists.
_MAPS = frozenset(
    {
        "CanaryMeta",
        "Config",
        "Env",
        "GetterHeaders",
        "GetterOptions",
        "Header",
        "Meta",
        "TaggedAddresses",
        "Volumes",
    }
)


def without_empty_fields(document: Document, *, without: Collection[str] = ()) -> Document:
    """Return a copy of an object without the fields `without`, and without empty lists and maps.

    In these objects, empty and absent mean the same.
    """
    return {
        name: value
        for name, value in document.items()
        if (value or not _is_collection(name, value)) and name not in without
    }


def _is_collection(name: str, value: object) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and name in _MAPS)


def set_default_weights(document: Document) -> None:
    """Set default weights of affinities and spreads of a job, group, task or device, in place."""
    for name in ("Affinities", "Spreads"):
        if name in document:
            document[name] = [{"Weight": DEFAULT_WEIGHT, **entry} for entry in document[name]]


def consul(document: Document, namespace: str = "") -> Document:
    """Return a Consul block. `namespace` applies if the block names no namespace."""
    return {
        **document,
        "Namespace": document.get("Namespace") or namespace,
        "Cluster": document.get("Cluster") or "default",
    }


def network(document: Document) -> Document:
    """Return a network with its defaults, and without a device, which clients cannot choose."""
    complete = without_empty_fields(document, without=("Device",))
    for name in ("ReservedPorts", "DynamicPorts"):
        if name in complete:
            complete[name] = [
                {**port, "HostNetwork": port.get("HostNetwork") or "default"}
                for port in complete[name]
            ]
    return complete


def scaling(
    document: Document, job: Document, group: Document, task: Document | None = None
) -> Document:
    """Return the scaling policy of a group or of one of its tasks, with every default set."""
    target = {"Namespace": job["Namespace"], "Job": job["ID"], "Group": group["Name"]}
    if task is not None:
        target["Task"] = task.get("Name", "")
    return {
        "Type": document.get("Type") or "horizontal",
        "Target": target,
        "Policy": document.get("Policy"),
        "Min": document.get("Min", group["Count"] if task is None else 0),
        "Max": document.get("Max", -1),  # absent: `validate` reports it
        "Enabled": document.get("Enabled", True),
    }
