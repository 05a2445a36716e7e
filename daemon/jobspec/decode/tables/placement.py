"""Constraints, affinities and spreads, which stand at several levels of a job."""

from daemon.jobspec.decode.kinds import flag, text
from daemon.jobspec.decode.shapes import (
    Child,
    Field,
    Fields,
    Form,
    Found,
    Shape,
    in_range,
    optional_text,
    plain_text,
)

_TARGETS: Fields = {
    **plain_text(attribute="LTarget", value="RTarget"),
    "operator": Field("Operand", text, "="),
}
# Arguments that are an operator with its value. They stand under their own names until `finish`.
_COMPARING = ("version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all")
_OPPOSITES = {"is_set": "is_not_set", "is_not_set": "is_set"}
_HOSTS, _PROPERTY = "distinct_hosts", "distinct_property"


def _comparing() -> Fields:
    return optional_text(**{name: name for name in _COMPARING})


def _finish_affinity(found: Found) -> None:
    document = found.document
    for name in _COMPARING:
        value = document.pop(name)
        if value is not None:
            document["Operand"], document["RTarget"] = name, value


def _finish_constraint(found: Found) -> None:
    _finish_affinity(found)
    document = found.document
    for name, opposite in _OPPOSITES.items():
        value = document.pop(name)
        if value is not None:
            document["Operand"] = name if value else opposite
    hosts, attribute = document.pop(_HOSTS), document.pop(_PROPERTY)
    if hosts is not None:
        document["Operand"], document["RTarget"] = _HOSTS, str(hosts).lower()
    if attribute is not None:
        document["Operand"], document["LTarget"] = _PROPERTY, attribute


_CONSTRAINT = Shape(
    fields={
        **_TARGETS,
        **_comparing(),
        **{name: Field(name, flag) for name in (*_OPPOSITES, _HOSTS)},
        **optional_text(**{_PROPERTY: _PROPERTY}),
    },
    finish=_finish_constraint,
)
_AFFINITY = Shape(
    fields={**_TARGETS, **_comparing(), **in_range(-128, 127, None, "weight")},
    finish=_finish_affinity,
)
_SPREAD = Shape(
    fields={**plain_text("attribute"), **in_range(-128, 127, None, "weight")},
    blocks={
        "target": Child(
            "SpreadTarget", Shape(in_range(0, 255, 0, "percent")), ("Value",), Form.MANY
        )
    },
)

CONSTRAINT = {"constraint": Child("Constraints", _CONSTRAINT, form=Form.MANY)}
AFFINITY = {"affinity": Child("Affinities", _AFFINITY, form=Form.MANY)}
SPREAD = {"spread": Child("Spreads", _SPREAD, form=Form.MANY)}
