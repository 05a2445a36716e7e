# ruff: noqa: ANN401  # a wire document holds anything; its shape says what
"""How documents look: the fields, maps and lists of a record, with the kinds that Go has for them.

Errors about filters name these kinds.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from storage.records.codec import ALIASES
from storage.records.task import Task


class Shape(msgspec.Struct, frozen=True, eq=False):
    """What kind of value stands at a place."""

    kind: str
    name: str  # of the type, as errors show it
    fields: Mapping[str, "Field"] = {}
    item: "Shape | None" = None  # of a list's items, of a map's values
    pointer: bool = False  # may be absent

    @property
    def scalar(self) -> bool:
        """Tell whether such values can be compared with a text."""
        return self.kind not in ("struct", "map", "slice", "invalid", "interface")

    def dynamic(self, value: Any) -> tuple[Any, "Shape"]:
        """Return a value, and how this very value looks: it may be absent, or be of any kind."""
        if value is None:
            return _absent(self)
        if self is not ANY:
            return value, self
        return value, _KINDS.get(type(value), INVALID)


class Field(msgspec.Struct, frozen=True):
    """A field of a record: its name on the wire, and what it is when it is left out."""

    name: str
    shape: Shape
    empty: object


class _NoItems(tuple[()]):
    """A list that is not there."""

    __slots__ = ()
    absent = True


class _NoKeys(dict[str, object]):
    """A map that is not there."""

    absent = True


STRING = Shape("string", "string")
DRIVER = Shape("string", "string")  # the name of a driver, which may have others
BOOL = Shape("bool", "bool")
INT = Shape("int", "int")
FLOAT = Shape("float64", "float64")
ANY = Shape("interface", "interface {}")
INVALID = Shape("invalid", "invalid")
_LIST = Shape("slice", "[]interface {}", item=ANY)
_MAP = Shape("map", "map[string]interface {}", item=ANY)
_KINDS = {str: STRING, bool: BOOL, int: FLOAT, float: FLOAT, list: _LIST, dict: _MAP}


def _absent(shape: Shape) -> tuple[Any, Shape]:
    match shape.kind:
        case "slice":
            return _NoItems(), shape
        case "map":
            return _NoKeys(), shape
        case "string" if shape.pointer:
            return "", shape  # what Go has as bytes
        case _:
            return None, INVALID


@cache
def shape_of(record: type) -> Shape:
    """Return how the documents of a record look."""
    return _shape(inspect.type_info(record))


def _shape(kind: inspect.Type) -> Shape:
    match kind:
        case inspect.UnionType():
            one = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
            return msgspec.structs.replace(_shape(one), pointer=True)
        case inspect.Metadata():
            named = (kind.extra or {}).get("go", "int")
            return Shape("int64" if named == "time.Duration" else named, named)
        case inspect.StructType():
            return _struct(kind)
        case inspect.DictType():
            item = _shape(kind.value_type)
            return Shape("map", f"map[string]{item.name}", item=item)
        case inspect.ListType() | inspect.VarTupleType():
            item = _shape(kind.item_type)
            return Shape("slice", f"[]{item.name}", item=item)
        case _:
            return _SCALARS.get(type(kind), ANY)


_SCALARS: dict[type[inspect.Type], Shape] = {
    inspect.StrType: STRING,
    inspect.EnumType: STRING,
    inspect.BoolType: BOOL,
    inspect.IntType: INT,
    inspect.FloatType: FLOAT,
}


def _struct(kind: inspect.StructType) -> Shape:
    fields: dict[str, Field] = {}
    for field in kind.fields:
        is_driver = kind.cls is Task and field.name == "driver"
        shape = DRIVER if is_driver else _shape(field.type)
        found = Field(field.encode_name, shape, _empty(shape, field.default))
        fields[field.encode_name] = found
        if alias := ALIASES.get(field.encode_name):
            fields[alias] = found
    return Shape("struct", f"structs.{kind.cls.__name__}", fields)


def _empty(shape: Shape, default: object) -> object:
    """Return what a field is that is left out of its document."""
    if isinstance(default, str | bool | int | float):
        return default
    if shape.pointer or shape.kind in ("slice", "map", "interface"):
        return None
    return {} if shape.kind == "struct" else _ZEROS.get(shape.kind, 0)


_ZEROS: dict[str, object] = {"string": "", "bool": False}
