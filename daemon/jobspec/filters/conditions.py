"""Filter conditions that the store can evaluate, so that it returns fewer rows.

Only leading terms are used, up to the first term that the store cannot evaluate. Evaluation stops
at the first false term, so the conditions neither hide nor add errors.
"""

import re
from collections.abc import Iterator, Mapping

from daemon.jobspec.filters.tree import And, Comparison, Node, Not, Or

_MOST = 64  # parts of terms: SQLite limits the depth of an expression
_LITERAL = re.compile(r"\^([\w/ -]*)", re.ASCII)  # a pattern that is a prefix


class Conditions:
    """SQL conditions with their parameters."""

    def __init__(self, node: Node, columns: Mapping[str, str]) -> None:
        """Convert the leading terms to SQL.

        `columns` maps the names of text fields to their SQL. Every document has these fields.
        """
        self._columns = columns
        self.values: dict[str, object] = {}
        self.texts = tuple(self._leading(node))

    def _leading(self, node: Node) -> Iterator[str]:
        left = _MOST
        for term in node.nodes if isinstance(node, And) else (node,):
            left -= _size(term)
            if left < 0 or not self._is_supported(term):
                return
            yield self._sql(term)

    def _is_supported(self, node: Node) -> bool:
        match node:
            case Not(inner):
                return self._is_supported(inner)
            case And(nodes) | Or(nodes):
                return all(self._is_supported(node) for node in nodes)
            case Comparison(selector, "equal" | "in"):
                return len(selector.path) == 1 and selector.path[0] in self._columns
            case Comparison(selector, "matches", value):
                is_column = len(selector.path) == 1 and selector.path[0] in self._columns
                return is_column and _LITERAL.fullmatch(value) is not None
            case _:
                return False

    def _sql(self, node: Node) -> str:
        match node:
            case Not(inner):
                return f"NOT ({self._sql(inner)})"
            case And(nodes):
                return f"({' AND '.join(map(self._sql, nodes))})"
            case Or(nodes):
                return f"({' OR '.join(map(self._sql, nodes))})"
            case Comparison():
                return f"NOT ({self._match(node)})" if node.negated else self._match(node)
            case _:
                raise AssertionError(node)  # unreachable: such a node is not supported

    def _match(self, node: Comparison) -> str:
        column, name = self._columns[node.selector.path[0]], f"filter{len(self.values)}"
        literal = _LITERAL.fullmatch(node.value) if node.operator == "matches" else None
        self.values[name] = literal[1] if literal else node.value
        match node.operator:
            case "equal":
                return f"{column} = :{name}"
            case "in":
                return f"instr({column}, :{name}) > 0"
            case _:
                return f"substr({column}, 1, length(:{name})) = :{name}"


def _size(node: Node) -> int:
    match node:
        case Not(inner):
            return 1 + _size(inner)
        case And(nodes) | Or(nodes):
            return 1 + sum(map(_size, nodes))
        case _:
            return 1
