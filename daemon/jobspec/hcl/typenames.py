"""Type expressions of variables and of the function `convert`."""

from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText, did_you_mean
from daemon.jobspec.hcl.tree import (
    CallExpr,
    Expression,
    ObjectExpr,
    TupleExpr,
    VariableRef,
    key_text,
)
from daemon.jobspec.hcl.values import PRIMITIVES, Type

_PRIMITIVES = {primitive.kind: primitive for primitive in PRIMITIVES}
_OF_ONE = {"list": "element", "set": "element", "map": "element"}
_CONSTRUCTORS = (*_OF_ONE, "tuple", "object")
_FORMS = (
    "A type specification is either a primitive type keyword (bool, number, string) or a complex "
    "type constructor call, like list(string)."
)


def read_type(node: Expression, source: SourceText) -> Type:
    """Return the type that an expression denotes. Raises `HclError`."""
    if isinstance(node, VariableRef) and not node.steps:
        return _keyword(node, source)
    if isinstance(node, CallExpr):
        return _constructed(node, source)
    raise _invalid(node, _FORMS, source)


def _keyword(node: VariableRef, source: SourceText) -> Type:
    if node.root in _PRIMITIVES:
        return _PRIMITIVES[node.root]
    if node.root == "any":
        detail = (
            'The keyword "any" cannot be used in this type specification: an exact type is '
            "required."
        )
    elif node.root in _CONSTRUCTORS:
        detail = (
            f"The {node.root} type constructor requires one argument specifying {_WHAT[node.root]}."
        )
    else:
        keywords = (*_PRIMITIVES, *_CONSTRUCTORS)
        detail = f'The keyword "{node.root}" is not a valid type specification.'
        detail += did_you_mean(node.root, keywords)
    raise _invalid(node, detail, source)


_WHAT = {
    "list": "the element type",
    "set": "the element type",
    "map": "the element type",
    "tuple": "the element types as a list",
    "object": "the attribute types as a map",
}


def _constructed(node: CallExpr, source: SourceText) -> Type:
    if node.name == "optional":
        raise _invalid_at(
            node.start,
            node.name_end,
            "Optional attribute modifier is only for type constraints, not for exact types.",
            source,
        )
    if node.name not in _CONSTRUCTORS:
        detail = f'The keyword "{node.name}" is not a valid type constructor.'
        detail += did_you_mean(node.name, _CONSTRUCTORS)
        raise _invalid_at(node.start, node.name_end, detail, source)
    if len(node.arguments) != 1:
        detail = (
            f"The {node.name} type constructor requires one argument specifying {_WHAT[node.name]}."
        )
        raise _invalid(node, detail, source)
    argument = node.arguments[0]
    if node.name in _OF_ONE:
        return Type(node.name, read_type(argument, source))
    if node.name == "tuple":
        if not isinstance(argument, TupleExpr):
            raise _invalid(argument, "Tuple type constructor requires a list of types.", source)
        return Type(
            "tuple", items=tuple([read_type(element, source) for element in argument.items])
        )
    return _object(argument, source)


def _object(node: Expression, source: SourceText) -> Type:
    if not isinstance(node, ObjectExpr):
        detail = "Object type constructor requires a map whose keys are attribute names."
        raise _invalid(node, detail, source)
    attributes: dict[str, Type] = {}
    for key, value in node.items:
        name = key_text(key)
        if name is None:
            raise _invalid(key, "Object constructor map keys must be attribute names.", source)
        attributes[name] = read_type(value, source)
    return Type("object", attributes=attributes)


def _invalid(node: Expression, detail: str, source: SourceText) -> HclError:
    return _invalid_at(node.start, node.end, detail, source)


def _invalid_at(start: int, end: int, detail: str, source: SourceText) -> HclError:
    return HclError(
        [
            Diagnostic(
                summary="Invalid type specification",
                detail=detail,
                source=source,
                start=start,
                end=end,
            )
        ]
    )
