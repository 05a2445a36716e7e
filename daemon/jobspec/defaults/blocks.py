"""What several levels of a job have in common: empty collections, weights, networks, scaling."""

from collections.abc import Collection

from storage.records.codec import Document

DEFAULT_WEIGHT = 50  # of affinities and spreads

# Free maps. Every other object is a block, and a block without arguments is still there.
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


def filled(document: Document, *, without: Collection[str] = ()) -> Document:
    """Return a copy of an object without some fields, and without its empty lists and maps.

    Empty and absent mean the same there.
    """
    return {
        name: value
        for name, value in document.items()
        if (value or not _is_collection(name, value)) and name not in without
    }


def _is_collection(name: str, value: object) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and name in _MAPS)


def weigh(document: Document) -> None:
    """Give weight to the affinities and spreads of a job, group, task or device, in place."""
    for name in ("Affinities", "Spreads"):
        if name in document:
            document[name] = [{"Weight": DEFAULT_WEIGHT, **item} for item in document[name]]


def consul(given: Document, namespace: str = "") -> Document:
    """Return a block of service discovery; `namespace` is for a block that names none."""
    return {
        **given,
        "Namespace": given.get("Namespace") or namespace,
        "Cluster": given.get("Cluster") or "default",
    }


def network(given: Document) -> Document:
    """Return a network; which device it uses is not the client's choice."""
    complete = filled(given, without=("Device",))
    for name in ("ReservedPorts", "DynamicPorts"):
        if name in complete:
            complete[name] = [
                {**port, "HostNetwork": port.get("HostNetwork") or "default"}
                for port in complete[name]
            ]
    return complete


def scaling(
    given: Document, job: Document, group: Document, task: Document | None = None
) -> Document:
    """Return a scaling policy of a group, or of a task of it."""
    target = {"Namespace": job["Namespace"], "Job": job["ID"], "Group": group["Name"]}
    if task is not None:
        target["Task"] = task.get("Name", "")
    return {
        "Type": given.get("Type") or "horizontal",
        "Target": target,
        "Policy": given.get("Policy"),
        "Min": given.get("Min", group["Count"] if task is None else 0),
        "Max": given.get("Max", -1),  # absent: `validate` objects
        "Enabled": given.get("Enabled", True),
    }
