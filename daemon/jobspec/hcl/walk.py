"""Traversal of an expression without evaluation."""

from collections.abc import Iterator

import msgspec

from daemon.jobspec.hcl.tree import Expression, VariableRef


def references(node: Expression) -> Iterator[VariableRef]:
    """Yield the references in an expression, in no particular order."""
    waiting: list[object] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, VariableRef):
            yield part
        elif isinstance(part, msgspec.Struct):
            waiting.extend(msgspec.structs.astuple(part))
        elif isinstance(part, tuple):
            waiting.extend(part)
