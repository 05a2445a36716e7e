"""`dynamic` blocks, which generate one block per element of a collection."""

from collections.abc import Iterator, Mapping

from daemon.jobspec.decode.bodies import contents
from daemon.jobspec.hcl.evaluate import evaluate, evaluate_all
from daemon.jobspec.hcl.scope import Scope
from daemon.jobspec.hcl.source import HclError, did_you_mean
from daemon.jobspec.hcl.tree import (
    Argument,
    Block,
    Body,
    Expression,
    Label,
    ObjectExpr,
    TemplateExpr,
    TupleExpr,
    VariableRef,
    key_text,
)
from daemon.jobspec.hcl.values import ConversionError, Value, elements, pairs, to_text, type_of

DYNAMIC = "dynamic"

_ARGUMENTS = frozenset({"for_each", "iterator", "labels"})


def expanded(
    block: Block, label_counts: Mapping[str, int], scope: Scope
) -> Iterator[tuple[Block, Scope]]:
    """Yield the generated blocks of a dynamic block, each with the scope of its content.

    `label_counts` maps each allowed block type to its number of labels. Raises `HclError`.
    """
    kind = block.labels[0]
    if kind.text not in label_counts or kind.text == DYNAMIC:
        detail = f'Blocks of type "{kind.text}" are not expected here.'
        hint = did_you_mean(kind.text, label_counts)
        raise scope.fault_at(kind.start, kind.end, "Unsupported block type", detail + hint)
    body_contents = contents(block.body, scope.source, _ARGUMENTS, {"content": 0})
    if body_contents.problems:
        raise HclError(body_contents.problems)
    content = _content(block, body_contents.blocks, scope)
    for_each = body_contents.arguments.get("for_each")
    if for_each is None:
        raise scope.fault_at(
            block.body.start,
            block.body.start,
            "Missing required argument",
            'The argument "for_each" is required, but no definition was found.',
        )
    name = _iterator(body_contents.arguments.get("iterator"), kind.text, scope)
    labels = body_contents.arguments.get("labels")
    for key, value in _elements(for_each.value, scope):
        inner = scope.with_values({name: {"key": key, "value": value}})
        texts = _labels(labels, label_counts[kind.text], block, inner)
        yield Block(kind.text, kind.start, kind.end, texts, content), inner


def _content(block: Block, blocks: list[Block], scope: Scope) -> Body | ObjectExpr:
    if len(blocks) == 1:
        return blocks[0].body
    if not blocks:
        raise scope.fault_at(
            block.body.start,
            block.body.start,
            "Missing content block",
            'A dynamic block needs a block "content", which it repeats.',
        )
    raise scope.fault_at(
        blocks[1].start,
        blocks[1].kind_end,
        "Duplicate content block",
        'Only one block of type "content" is allowed.',
    )


def _iterator(argument: Argument | None, default: str, scope: Scope) -> str:
    if argument is None:
        return default
    match argument.value:
        case VariableRef(root=name, steps=()):
            return name
        case TemplateExpr(parts=(_,)) if scope.source.text.startswith("{"):
            name = key_text(argument.value) or ""
            if name.isidentifier():
                return name
    raise scope.fault(
        argument.value,
        "Invalid expression for iterator",
        "The name of the iterator must be a single word.",
    )


def _elements(node: Expression, scope: Scope) -> Iterator[tuple[Value, Value]]:
    value = evaluate(node, scope)
    if value is None:
        detail = "Cannot use a null value in for_each."
        raise scope.fault(node, "Invalid dynamic for_each value", detail)
    key_value_pairs = pairs(value)
    if key_value_pairs is None:
        detail = (
            f"Cannot use a {type_of(value).name} value in for_each. An iterable collection is "
            "required."
        )
        raise scope.fault(node, "Invalid dynamic for_each value", detail)
    return key_value_pairs


def _labels(
    argument: Argument | None, label_count: int, block: Block, scope: Scope
) -> tuple[Label, ...]:
    nodes: tuple[Expression, ...] = ()
    if argument is not None:
        nodes, values = _label_values(argument.value, scope)
    if len(nodes) != label_count:
        where = argument.value if argument is not None else None
        start = where.start if where else block.body.start
        detail = f"A block of this type has {label_count} labels, but there are {len(nodes)} here."
        raise scope.fault_at(
            start, where.end if where else start, "Wrong number of block labels", detail
        )
    return (
        tuple([_label(node, value, scope) for node, value in zip(nodes, values, strict=True)])
        if nodes
        else ()
    )


def _label_values(
    node: Expression, scope: Scope
) -> tuple[tuple[Expression, ...], tuple[Value, ...]]:
    """Return the expressions of the labels, and the values of the labels."""
    if isinstance(node, TupleExpr):
        return node.items, tuple(evaluate_all(node.items, scope))
    values = elements(evaluate(node, scope))
    if values is None:
        raise scope.fault(node, "Invalid dynamic block labels", "A list of strings is required.")
    return (node,) * len(values), values


def _label(node: Expression, value: Value, scope: Scope) -> Label:
    try:
        text = to_text(value)
    except ConversionError as error:
        detail = f"Cannot use this value as a dynamic block label: {error}."
        raise scope.fault(node, "Invalid dynamic block label", detail) from error
    return Label(text, node.start, node.end)
