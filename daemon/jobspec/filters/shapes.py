# ruff: noqa: ANN401  # a wire document may hold any value; its shape has the type
"""Shapes of documents: the fields, maps and lists of a record, with their Go kinds.

Error messages of filters name these kinds.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from storage.records.codec import ALIASES
from storage.records.task import Task


class DocumentShape(msgspec.Struct, frozen=True, eq=False):
    """The shape of a value in a document: its kind, and the shapes of its fields or items."""

    kind: str
    name: str  # name of the type in error messages
    fields: Mapping[str, "DocumentField"] = {}
    item: "DocumentShape | None" = None  # shape of a list's items or a map's values
    pointer: bool = False  # optional

    @property
    def scalar(self) -> bool:
        """Return whether values of this kind can be compared with a text."""
        return self.kind not in ("struct", "map", "slice", "invalid", "interface")

    def dynamic(self, value: Any) -> tuple[Any, "DocumentShape"]:
        """Return a value and its actual shape, which differs from `self` for null and for `ANY`."""
        if value is None:
            return _absent(self)
        if self is not ANY:
            return value, self
        return value, _KINDS.get(type(value), INVALID)


class DocumentField(msgspec.Struct, frozen=True):
    """A field of a record: its wire name, the shape of its value, and the value if omitted."""

    name: str
    shape: DocumentShape
    empty: object


class _NoItems(tuple[()]):
    """A null list."""

    __slots__ = ()
    absent = True


class _NoKeys(dict[str, object]):
    """A null map."""

    absent = True


STRING = DocumentShape("string", "string")
DRIVER = DocumentShape("string", "string")  # name of a driver, which may have aliases
NUMERIC = DocumentShape("string", "string")  # a text that ordered comparisons read as a number
BOOL = DocumentShape("bool", "bool")
INT = DocumentShape("int", "int")
FLOAT = DocumentShape("float64", "float64")
ANY = DocumentShape("interface", "interface {}")
INVALID = DocumentShape("invalid", "invalid")
_LIST = DocumentShape("slice", "[]interface {}", item=ANY)
_MAP = DocumentShape("map", "map[string]interface {}", item=ANY)
_KINDS = {str: STRING, bool: BOOL, int: FLOAT, float: FLOAT, list: _LIST, dict: _MAP}


def _absent(shape: DocumentShape) -> tuple[Any, DocumentShape]:
    match shape.kind:
        case "slice":
            return _NoItems(), shape
        case "map":
            return _NoKeys(), shape
        case "string" if shape.pointer:
            return "", shape  # in Go, such a field is a byte
        case _:
            return None, INVALID


@cache
def shape_of(record: type) -> DocumentShape:
    """Return the shape of a record's documents."""
    return _shape(inspect.type_info(record))


def _shape(kind: inspect.Type) -> DocumentShape:
    match kind:
        case inspect.UnionType():
            type_ = next(type_ for type_ in kind.types if not isinstance(type_, inspect.NoneType))
            return msgspec.structs.replace(_shape(type_), pointer=True)
        case inspect.Metadata():
            if (kind.extra or {}).get("is_numeric"):
                return NUMERIC
            named = (kind.extra or {}).get("go", "int")
            return DocumentShape("int64" if named == "time.Duration" else named, named)
        case inspect.StructType():
            return _struct(kind)
        case inspect.DictType():
            item_shape = _shape(kind.value_type)
            return DocumentShape("map", f"map[string]{item_shape.name}", item=item_shape)
        case inspect.ListType() | inspect.VarTupleType():
            item_shape = _shape(kind.item_type)
            return DocumentShape("slice", f"[]{item_shape.name}", item=item_shape)
        case _:
            return _SCALARS.get(type(kind), ANY)


_SCALARS: dict[type[inspect.Type], DocumentShape] = {
    inspect.StrType: STRING,
    inspect.EnumType: STRING,
    inspect.BoolType: BOOL,
    inspect.IntType: INT,
    inspect.FloatType: FLOAT,
}


def _struct(kind: inspect.StructType) -> DocumentShape:
    fields: dict[str, DocumentField] = {}
    for field in kind.fields:
        is_driver = kind.cls is Task and field.name == "driver"
        shape = DRIVER if is_driver else _shape(field.type)
        document_field = DocumentField(field.encode_name, shape, _empty(shape, field.default))
        fields[field.encode_name] = document_field
        if alias := ALIASES.get(field.encode_name):
            fields[alias] = document_field
    return DocumentShape("struct", f"structs.{kind.cls.__name__}", fields)


def _empty(shape: DocumentShape, default: object) -> object:
    """Return the value of a field that a document omits."""
    if isinstance(default, str | bool | int | float):
        return default
    if shape.pointer or shape.kind in ("slice", "map", "interface"):
        return None
    return {} if shape.kind == "struct" else _ZEROS.get(shape.kind, 0)


_ZEROS: dict[str, object] = {"string": "", "bool": False}
