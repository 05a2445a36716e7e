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


def _finish_group(decoded_block: DecodedBlock) -> None:
    kind = decoded_block.document["Type"] or _HORIZONTAL
    decoded_block.document["Type"] = kind
    if kind != _HORIZONTAL:
        decoded_block.object_to(
            "type",
            "Invalid group scaling type",
            f"task group scaling policy had invalid type: {quote(kind)}",
        )


def _finish_task(decoded_block: DecodedBlock) -> None:
    label = decoded_block.document.pop("label")
    kind = _VERTICAL.get(label)
    if kind is None:
        decoded_block.object_to_block(
            "Invalid scaling policy name",
            f'A scaling policy of a task is named "cpu" or "mem", not {quote(label)}.',
        )
    elif decoded_block.document["Type"] not in (None, kind):
        decoded_block.object_to(
            "type", "Invalid scaling type", f"The type of this policy is {quote(kind)}."
        )
    decoded_block.document["Type"] = kind


_GROUP = BlockSchema(_FIELDS, {"policy": FreeForm("Policy")}, _ALWAYS, _finish_group)
_TASK = BlockSchema(
    {**_FIELDS, **optional_integer("max")}, {"policy": FreeForm("Policy")}, _ALWAYS, _finish_task
)

GROUP_SCALING = {"scaling": ChildBlock("Scaling", _GROUP)}
TASK_SCALING = {"scaling": ChildBlock("ScalingPolicies", _TASK, ("label",), BlockForm.ONE_EACH)}
