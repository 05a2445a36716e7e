"""Scaling policies of groups and of task resources."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    FieldSpec,
    FreeForm,
    optional_flag,
    optional_integer,
    optional_text,
)
from daemon.jobspec.decode.types import integer
from daemon.text.go_format import quote

_HORIZONTAL = "horizontal"
_VERTICAL = {"cpu": "vertical_cpu", "mem": "vertical_mem"}
_FIELDS = {
    **optional_flag("enabled"),
    **optional_integer("min"),
    **optional_text("type"),
    "max": FieldSpec("Max", integer, is_required=True),
}
_ALWAYS = {"ID": "", "Namespace": "", "Target": None, "CreateIndex": 0, "ModifyIndex": 0}


def _finish_group(found: DecodedBlock) -> None:
    kind = found.document["Type"] or _HORIZONTAL
    found.document["Type"] = kind
    if kind != _HORIZONTAL:
        found.object_to(
            "type",
            "Invalid group scaling type",
            f"task group scaling policy had invalid type: {quote(kind)}",
        )


def _finish_task(found: DecodedBlock) -> None:
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


_GROUP = BlockSchema(_FIELDS, {"policy": FreeForm("Policy")}, _ALWAYS, _finish_group)
_TASK = BlockSchema(
    {**_FIELDS, **optional_integer("max")}, {"policy": FreeForm("Policy")}, _ALWAYS, _finish_task
)

GROUP_SCALING = {"scaling": ChildBlock("Scaling", _GROUP)}
TASK_SCALING = {"scaling": ChildBlock("ScalingPolicies", _TASK, ("label",), BlockForm.ONE_EACH)}
