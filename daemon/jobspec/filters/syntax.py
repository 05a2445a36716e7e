"""The syntax of filter expressions. Error messages are Nomad's.

    Status == "running" and (Meta.team contains ops or not ID matches `^test-`)
    any TaskGroups as group { group.Count == 0 }

Forms are tried in order (fixtures: list-jobs, evaluations-allocations, agent-and-status).
"""

from daemon.jobspec.filters.reader import FilterReader
from daemon.jobspec.filters.tree import And, CollectionMatch, Comparison, Node, Not, Or
from storage.errors import Malformed

MAX_DEPTH = 50  # depth of brackets and braces

_Operators = tuple[tuple[tuple[str, ...], str, bool], ...]  # words, name, negated
_WITH_VALUE: _Operators = (
    (("==",), "equal", False),
    (("!=",), "equal", True),
    (("contains",), "in", False),
    (("not", "contains"), "in", True),
    (("matches",), "matches", False),
    (("not", "matches"), "matches", True),
)
# Additional operators of policies.
_ORDER: _Operators = (
    (("<=",), "at most", False),
    (("<",), "less", False),
    ((">=",), "at least", False),
    ((">",), "more", False),
)
_ALONE: _Operators = (
    (("is", "empty"), "empty", False),
    (("is", "not", "empty"), "empty", True),
    (("is", "nil"), "nil", False),
    (("is", "not", "nil"), "nil", True),
)
_REVERSED: _Operators = (
    (("in",), "in", False),
    (("not", "in"), "in", True),
)


def parse(text: str, *, of_policy: bool = False) -> Node:
    """Parse an expression. Raises `Malformed` with the position and the expectations.

    A policy's expression can also contain ordered comparisons.
    """
    reader = _Syntax(text, (*_WITH_VALUE, *_ORDER) if of_policy else _WITH_VALUE)
    node = reader.whole()
    if reader.problems:
        raise Malformed("\n".join(dict.fromkeys(reader.problems)))
    if node is None:
        raise Malformed(reader.expectation())
    return node


class _Syntax(FilterReader):
    """Parser of forms. Each form returns its result or None; `attempt` restores the position."""

    def __init__(self, text: str, with_value: _Operators) -> None:
        super().__init__(text)
        self.with_value = with_value
        self.depth = 0

    def whole(self) -> Node | None:
        return self.first_match(self.bracketed_whole, self.plain_whole)

    def bracketed_whole(self) -> Node | None:
        self.space()
        if not self.literal("("):
            return None
        self.space()
        node = self.alternatives()
        self.space()
        if node is None or not self.literal(")"):
            return None
        self.space()
        return node if self.end() else None

    def plain_whole(self) -> Node | None:
        self.space()
        node = self.alternatives()
        if node is None:
            return None
        self.space()
        return node if self.end() else None

    def alternatives(self) -> Node | None:
        first = self.conjunction()
        if first is None:
            return self.first_match(self.collection)
        nodes = [first]
        start = self.at
        while self.spaced_words("or"):
            following = self.first_match(self.conjunction, self.collection)
            if following is None:
                break
            nodes.append(following)
            start = self.at
            if isinstance(following, CollectionMatch):  # `any` and `all` must come last
                break
        self.at = start
        return nodes[0] if len(nodes) == 1 else Or(tuple(nodes))

    def conjunction(self) -> Node | None:
        first = self.negation()
        if first is None:
            return None
        nodes = [first]
        start = self.at
        while self.spaced_words("and") and (following := self.negation()) is not None:
            nodes.append(following)
            start = self.at
        self.at = start
        return nodes[0] if len(nodes) == 1 else And(tuple(nodes))

    def negation(self) -> Node | None:
        starts = [self.at]
        while self.literal("not") and self.space():
            starts.append(self.at)
        # `not` can also be a name: then the last `not` begins the operand.
        while starts:
            self.at = starts.pop()
            node = self.first_match(self.grouping, self.match)
            if node is not None:
                return Not(node) if len(starts) % 2 else node
        return None

    def grouping(self) -> Node | None:
        if not self.literal("("):
            return None
        self.enter()
        self.space()
        node = self.alternatives()
        self.depth -= 1
        if node is None:
            return None
        self.space()
        if not self.literal(")"):
            self.problem("grouping", "Unmatched parentheses")
            return None
        return node

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Malformed(f"the expression is nested more than {MAX_DEPTH} levels deep")

    # --- any and all ---

    def collection(self) -> Node | None:
        matches_all = not self.literal("any")
        if matches_all and not self.literal("all"):
            return None
        if not self.space():
            return None
        selector = self.selector()
        if selector is None or not self.spaced_words("as"):
            return None
        names = self.names()
        if names is None:
            return None
        self.space()
        if not self.literal("{"):
            return None
        self.enter()
        self.space()
        node = self.alternatives()
        self.depth -= 1
        self.space()
        if node is None or not self.literal("}"):
            return None
        name, index, item_name = names
        return CollectionMatch(matches_all, selector, node, name, index, item_name)

    def names(self) -> tuple[str, str, str] | None:
        """Parse the bound names: one name, or the names of an index and an item.

        Return the one name, the name of the index, and the name of the item. A name is empty if it
        is absent or `_`. Return None if there are no names.
        """
        start = self.at
        if first := self.identifier():
            alone = self.at
            if self.comma():
                if second := self.identifier():
                    return "", first, second
                if self.literal("_"):
                    return "", first, ""
            self.at = alone
            return first, "", ""
        if self.literal("_") and self.comma() and (second := self.identifier()):
            return "", "", second
        self.at = start
        return None

    def comma(self) -> bool:
        self.space()
        if not self.literal(","):
            return False
        self.space()
        return True

    # --- comparisons ---

    def match(self) -> Node | None:
        return self.first_match(
            self.selector_operator_value, self.selector_operator, self.value_operator_selector
        )

    def selector_operator_value(self) -> Comparison | None:
        selector = self.selector()
        if selector is None:
            return None
        operator = self.first_operator(self.with_value)
        if operator is None:
            return None
        value = self.value()
        return None if value is None else Comparison(selector, operator[0], value, operator[1])

    def selector_operator(self) -> Comparison | None:
        selector = self.selector()
        if selector is None:
            return None
        operator = self.first_operator(_ALONE)
        return None if operator is None else Comparison(selector, operator[0], "", operator[1])

    def value_operator_selector(self) -> Comparison | None:
        value = self.value()
        if value is None:
            return None
        operator = self.first_operator(_REVERSED)
        if operator is None:
            return None
        selector = self.selector()
        if selector is None:
            self.problem("match", "Invalid selector")
            return None
        return Comparison(selector, operator[0], value, operator[1])

    def first_operator(self, operators: _Operators) -> tuple[str, bool] | None:
        start = self.at
        for words, name, negated in operators:
            if self.operator(words):
                return name, negated
            self.at = start
        return None

    def operator(self, words: tuple[str, ...]) -> bool:
        if not words[0].isalpha():
            self.space()
            is_present = self.literal(words[0])
            if is_present:
                self.space()
            return is_present
        *most, last = words
        if last in ("empty", "nil"):
            return self.spaced_words(*most) and self.literal(last)
        return self.spaced_words(*words)
