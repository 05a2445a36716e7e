"""Going through an expression without evaluating it."""

from collections.abc import Iterator

import msgspec

from daemon.jobspec.hcl.tree import Expression, Reference


def references(node: Expression) -> Iterator[Reference]:
    """Yield the references in an expression, in no particular order."""
    waiting: list[object] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Reference):
            yield part
        elif isinstance(part, msgspec.Struct):
            waiting.extend(msgspec.structs.astuple(part))
        elif isinstance(part, tuple):
            waiting.extend(part)
