"""Constraints, affinities and spreads at each level of a job."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    Fields,
    FieldSpec,
    in_range,
    optional_text,
    plain_text,
)
from daemon.jobspec.decode.types import flag, text

_TARGETS: Fields = {
    **plain_text(attribute="LTarget", value="RTarget"),
    "operator": FieldSpec("Operand", text, "="),
}
# Arguments that combine an operator with its value. `finish` replaces these names.
_COMPARING = ("version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all")
_OPPOSITES = {"is_set": "is_not_set", "is_not_set": "is_set"}
_HOSTS, _PROPERTY = "distinct_hosts", "distinct_property"


def _comparing() -> Fields:
    return optional_text(**{name: name for name in _COMPARING})


def _finish_affinity(decoded_block: DecodedBlock) -> None:
    document = decoded_block.document
    for name in _COMPARING:
        value = document.pop(name)
        if value is not None:
            document["Operand"], document["RTarget"] = name, value


def _finish_constraint(decoded_block: DecodedBlock) -> None:
    _finish_affinity(decoded_block)
    document = decoded_block.document
    for name, opposite in _OPPOSITES.items():
        value = document.pop(name)
        if value is not None:
            document["Operand"] = name if value else opposite
    hosts, attribute = document.pop(_HOSTS), document.pop(_PROPERTY)
    if hosts is not None:
        document["Operand"], document["RTarget"] = _HOSTS, str(hosts).lower()
    if attribute is not None:
        document["Operand"], document["LTarget"] = _PROPERTY, attribute


_CONSTRAINT = BlockSchema(
    fields={
        **_TARGETS,
        **_comparing(),
        **{name: FieldSpec(name, flag) for name in (*_OPPOSITES, _HOSTS)},
        **optional_text(**{_PROPERTY: _PROPERTY}),
    },
    finish=_finish_constraint,
)
_AFFINITY = BlockSchema(
    fields={**_TARGETS, **_comparing(), **in_range(-128, 127, None, "weight")},
    finish=_finish_affinity,
)
_SPREAD = BlockSchema(
    fields={**plain_text("attribute"), **in_range(-128, 127, None, "weight")},
    blocks={
        "target": ChildBlock(
            "SpreadTarget", BlockSchema(in_range(0, 255, 0, "percent")), ("Value",), BlockForm.MANY
        )
    },
)

CONSTRAINT = {"constraint": ChildBlock("Constraints", _CONSTRAINT, form=BlockForm.MANY)}
AFFINITY = {"affinity": ChildBlock("Affinities", _AFFINITY, form=BlockForm.MANY)}
SPREAD = {"spread": ChildBlock("Spreads", _SPREAD, form=BlockForm.MANY)}
