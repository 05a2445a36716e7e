"""Scaling policies, of groups and of the resources of a task."""

from daemon.jobspec.decode.kinds import integer
from daemon.jobspec.decode.shapes import (
    Child,
    Field,
    Form,
    Found,
    FreeForm,
    Shape,
    optional_flag,
    optional_integer,
    optional_text,
)
from daemon.jobspec.gotext import quote

_HORIZONTAL = "horizontal"
_VERTICAL = {"cpu": "vertical_cpu", "mem": "vertical_mem"}
_FIELDS = {
    **optional_flag("enabled"),
    **optional_integer("min"),
    **optional_text("type"),
    "max": Field("Max", integer, is_required=True),
}
_ALWAYS = {"ID": "", "Namespace": "", "Target": None, "CreateIndex": 0, "ModifyIndex": 0}


def _finish_group(found: Found) -> None:
    kind = found.document["Type"] or _HORIZONTAL
    found.document["Type"] = kind
    if kind != _HORIZONTAL:
        found.object_to(
            "type",
            "Invalid group scaling type",
            f"task group scaling policy had invalid type: {quote(kind)}",
        )


def _finish_task(found: Found) -> None:
    label = found.document.pop("label")
    kind = _VERTICAL.get(label)
    if kind is None:
        found.object_to_block(
            "Invalid scaling policy name",
            f'A scaling policy of a task is named "cpu" or "mem", not {quote(label)}.',
        )
    elif found.document["Type"] not in (None, kind):
        found.object_to(
            "type", "Invalid scaling type", f"The type of this policy is {quote(kind)}."
        )
    found.document["Type"] = kind


_GROUP = Shape(_FIELDS, {"policy": FreeForm("Policy")}, _ALWAYS, _finish_group)
_TASK = Shape(
    {**_FIELDS, **optional_integer("max")}, {"policy": FreeForm("Policy")}, _ALWAYS, _finish_task
)

GROUP_SCALING = {"scaling": Child("Scaling", _GROUP)}
TASK_SCALING = {"scaling": Child("ScalingPolicies", _TASK, ("label",), Form.ONE_EACH)}
