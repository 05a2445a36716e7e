"""Expressions: operators by precedence, traversals, calls, collections and `for`."""

from daemon.jobspec.hcl.cursor import HclSyntaxError
from daemon.jobspec.hcl.lexer import (
    HEREDOC,
    IDENT,
    NEWLINE,
    NUMBER,
    OPEN_HEREDOC,
    OPEN_QUOTE,
    STRING,
)
from daemon.jobspec.hcl.number import read_number
from daemon.jobspec.hcl.templates import TemplateParser
from daemon.jobspec.hcl.tree import (
    AttrStep,
    BinaryOp,
    CallExpr,
    Conditional,
    Expression,
    For,
    IndexExpr,
    IndexStep,
    Literal,
    ObjectExpr,
    Parenthesized,
    Path,
    Splat,
    Step,
    TupleExpr,
    UnaryOp,
    VariableRef,
)
from daemon.jobspec.hcl.values import Value

_RANKS = {
    "||": 0,
    "&&": 1,
    "==": 2,
    "!=": 2,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_NEVER = "for"  # starts no operand


class Expressions(TemplateParser):
    """A parser of expressions."""

    is_v1 = False  # the text is a job in HCL1 syntax

    def expression(self) -> Expression:
        """Return the next expression."""
        self.descend()
        condition = self._chain()
        if self.accept("?"):
            then = self.expression()
            if not self.accept(":"):
                raise self.error(
                    "Missing false expression in conditional",
                    "The conditional operator (...?...:...) requires a false expression, "
                    "delimited by a colon.",
                )
            otherwise = self.expression()
            condition = Conditional(condition.start, otherwise.end, condition, then, otherwise)
        self.depth -= 1
        return condition

    def _chain(self) -> Expression:
        """Return operands with their operators, grouped by precedence."""
        first = self._operand()
        if self.kind not in _RANKS:
            return first
        operands, operators = [first], []
        while self.kind in _RANKS:
            operators.append(self.take())
            operands.append(self._operand())
        for rank in range(5, -1, -1):
            if any(_RANKS[operator] == rank for operator in operators):
                operands, operators = _grouped(operands, operators, rank)
        return operands[0]

    def _operand(self) -> Expression:
        """Return an operand with its unary operators and its traversal."""
        if self.kind in ("-", "!"):
            start = self.start
            operator = self.take()
            self.descend()
            operand = self._operand()
            self.depth -= 1
            return UnaryOp(start, operand.end, operator, operand)
        term = self._term()
        return self._steps(term) if self.kind in (".", "[") else term

    def _term(self) -> Expression:
        kind = self.kind
        if kind == STRING:
            return self.simple_text()
        if kind == IDENT:
            return self._named()
        if kind == NUMBER:
            return self._number()
        if kind == "[":
            return self._tuple()
        if kind == "{":
            return self._object()
        return self._rarer_term(kind)

    def _rarer_term(self, kind: str) -> Expression:
        if kind == OPEN_QUOTE:
            return self.quoted()
        if kind == HEREDOC:
            return self.simple_heredoc()
        if kind == OPEN_HEREDOC:
            return self.heredoc()
        if kind != "(":
            raise self.no_expression()
        start = self.start
        self.at += 1
        inner = self.expression()
        if not self.accept(")"):
            raise self.error(
                "Unbalanced parentheses",
                "Expected a closing parenthesis to terminate the expression.",
            )
        return Parenthesized(start, self.last_end, inner)

    def _number(self) -> Expression:
        start, end = self.start, self.ends[self.at]
        try:
            value = read_number(self.take())
        except ValueError as error:
            raise self.error_at(start, end, "Invalid number literal", f"{error}.") from error
        return Literal(start, end, value)

    def _named(self) -> Expression:
        """Return the expression that starts with a name: a constant, a call or a reference."""
        start, end = self.start, self.ends[self.at]
        name = self.take()
        while self.kind == "::":  # a namespace, which contains no functions
            self.at += 1
            if self.kind != IDENT:
                raise self.error("Missing function name", "A name is required after '::'.")
            end = self.ends[self.at]
            name += f"::{self.take()}"
        if self.kind == "(":
            return self._call(name, start, end)
        if name in _WORDS:
            return Literal(start, end, _WORDS[name])
        steps: list[Step] = []
        while (step := self._plain_step()) is not None:
            steps.append(step)
        text = self.source.text[start : self.last_end]
        return VariableRef(start, self.last_end, name, tuple(steps), text)

    # --- traversals ---

    def _plain_step(self) -> Step | None:
        """Consume a literal attribute or index; None for any other traversal."""
        kind, following = self.kind, self.kinds[min(self.at + 1, len(self.kinds) - 1)]
        if kind == "." and following != "*":
            return self._attribute()
        if kind == "[" and following in (NUMBER, STRING) and self.kinds[self.at + 2] == "]":
            start = self.start
            self.at += 1
            key = self.simple_text() if following == STRING else self._number()
            self.at += 1
            return IndexExpr(start, self.last_end, key)
        return None

    def _attribute(self) -> Step:
        start = self.start
        self.at += 1
        if self.kind == IDENT:
            return AttrStep(start, self.ends[self.at], self.take())
        if self.kind == NUMBER:
            return self._dotted_index(start)
        raise self.error("Invalid attribute name", "An attribute name is required after a dot.")

    def _dotted_index(self, start: int) -> Step:
        """Return the index of `.0`. The lexer reads `.0.1` as one number; it is two steps here."""
        first, dot, _ = self.word().partition(".")
        if not first.isdigit():
            raise self.error("Invalid index", "An index after a dot is a whole number.")
        key_start = self.start
        if dot:
            self.starts[self.at] += len(first)  # the rest is parsed as the next step
            self._split_number()
        else:
            self.at += 1
        key = Literal(key_start, key_start + len(first), int(first))
        return IndexExpr(start, key.end, key)

    def _split_number(self) -> None:
        """Split `.1` of a number `0.1` into separate tokens."""
        dot, end = self.starts[self.at], self.ends[self.at]
        self.kinds[self.at : self.at + 1] = [".", NUMBER]
        self.starts[self.at : self.at + 1] = [dot, dot + 1]
        self.ends[self.at : self.at + 1] = [dot + 1, end]

    def _steps(self, base: Expression) -> Expression:
        """Return an expression with its traversal."""
        steps: list[Step] = []
        while True:
            if (step := self._plain_step()) is not None:
                steps.append(step)
            elif self.kind == ".":
                base, steps = _with_steps(base, steps), []
                base = self._attribute_splat(base)
            elif self.kind == "[" and self.kinds[self.at + 1] == "*":
                return self._full_splat(_with_steps(base, steps))
            elif self.kind == "[":
                steps.append(self._index())
            else:
                return _with_steps(base, steps)

    def _index(self) -> IndexExpr:
        start = self.start
        self.at += 1
        key = self.expression()
        if not self.accept("]"):
            raise self.error(
                "Missing close bracket on index",
                "The index operator must end with a closing bracket.",
            )
        return IndexExpr(start, self.last_end, key)

    def _attribute_splat(self, base: Expression) -> Expression:
        """Return `base.*` with its attributes. A following index applies to the whole result."""
        mark_start = self.start
        self.at += 2
        mark_end = self.last_end
        steps: list[Step] = []
        while self.kind == "." and self.kinds[self.at + 1] != "*":
            steps.append(self._attribute())
        walk = _with_steps(IndexStep(mark_end, mark_end), steps)
        return Splat(base.start, self.last_end, base, mark_start, mark_end, walk)

    def _full_splat(self, base: Expression) -> Expression:
        """Return `base[*]` with its complete traversal."""
        mark_start = self.start
        self.at += 2
        if not self.accept("]"):
            raise self.error(
                "Missing close bracket on splat index",
                'The star of "[*]" must be followed by a closing bracket.',
            )
        mark_end = self.last_end
        self.descend()
        walk = self._steps(IndexStep(mark_end, mark_end))
        self.depth -= 1
        return Splat(base.start, self.last_end, base, mark_start, mark_end, walk)

    # --- calls and collections ---

    def _call(self, name: str, start: int, name_end: int) -> Expression:
        self.at += 1
        open_end = self.last_end
        arguments: list[Expression] = []
        expands = False
        while self.kind != ")":
            arguments.append(self.expression())
            if self.kind == "...":
                expands = True
                if self.kinds[self.at + 1] != ")":
                    raise self.error(
                        "Missing closing parenthesis",
                        "An expanded function argument (with ...) must be immediately "
                        "followed by closing parentheses.",
                    )
                self.at += 1
            elif not self.accept(",") and self.kind != ")":
                raise self.error(
                    "Missing argument separator",
                    "A comma is required to separate each function argument from the next.",
                )
        close = self.start
        self.at += 1
        return CallExpr(
            start, self.last_end, name, name_end, open_end, tuple(arguments), expands, close
        )

    def _tuple(self) -> Expression:
        start = self.start
        self.at += 1
        if self.kind == IDENT and self.word() == "for":
            return self._for(start, "]")
        items: list[Expression] = []
        while not self.accept("]"):
            items.append(self.expression())
            if not self.accept(",") and self.kind != "]":
                raise self.error(
                    "Missing item separator",
                    "Expected a comma to mark the beginning of the next item.",
                )
        return TupleExpr(start, self.last_end, tuple(items))

    def _object(self) -> Expression:
        start = self.start
        self.at += 1
        if self.kind == IDENT and self.word() == "for" and not self._names_a_key():
            return self._for(start, "}")
        items: list[tuple[Expression, Expression]] = []
        while True:
            while self.accept(NEWLINE):
                pass
            if self.accept("}"):
                return ObjectExpr(start, self.last_end, tuple(items))
            items.append(self._pair())
            if not self.accept(",") and self.kind not in ("}", NEWLINE) and not self.is_v1:
                raise self.error(
                    "Missing attribute separator",
                    "Expected a newline or comma to mark the beginning of the next attribute.",
                )

    def _names_a_key(self) -> bool:
        return self.kinds[self.at + 1] in ("=", ":")

    def _pair(self) -> tuple[Expression, Expression]:
        key = self.expression()
        if not self.accept("=") and not self.accept(":"):
            raise self.error(
                "Missing attribute value",
                'Expected an attribute value, introduced by an equals sign ("=").',
            )
        return _literal_key(key), self.expression()

    def _for(self, start: int, closing: str) -> Expression:
        self.at += 1
        names = [self._for_name()]
        if self.accept(","):
            names.append(self._for_name())
        if self.kind != IDENT or self.word() != "in":
            raise self._bad_for("requires the 'in' keyword after its name declarations")
        self.at += 1
        collection = self.expression()
        if not self.accept(":"):
            raise self._bad_for("requires a colon after the collection expression")
        key, value = None, self.expression()
        if self.kind == "=>":
            if closing == "]":
                raise self._bad_for("must not have a key when it builds a tuple")
            self.at += 1
            key, value = value, self.expression()
        elif closing == "}":
            raise self._bad_for("requires a key, followed by =>, when it builds an object")
        groups = self._grouping(closing)
        condition = None
        if self.kind == IDENT and self.word() == "if":
            self.at += 1
            condition = self.expression()
        if not self.accept(closing):
            raise self._bad_for(f'must end with "{closing}"')
        key_name, value_name = names if len(names) > 1 else ("", names[0])
        return For(
            *(start, self.last_end, key_name, value_name, collection),
            *(key, value, condition, groups),
        )

    def _for_name(self) -> str:
        if self.kind != IDENT:
            raise self._bad_for("requires a name for each element")
        return self.take()

    def _grouping(self, closing: str) -> bool:
        if self.kind != "...":
            return False
        if closing == "]":
            raise self.error(
                "Invalid 'for' expression",
                "Grouping ellipsis (...) cannot be used when building a tuple.",
            )
        self.at += 1
        return True

    def _bad_for(self, problem: str) -> HclSyntaxError:
        return self.error("Invalid 'for' expression", f"For expression {problem}.")


def _with_steps(base: Expression, steps: list[Step]) -> Expression:
    return Path(base.start, steps[-1].end, base, tuple(steps)) if steps else base


def _grouped(
    operands: list[Expression], operators: list[str], rank: int
) -> tuple[list[Expression], list[str]]:
    """Join the operands of each operator with the precedence `rank`.

    Return the resulting operands, and the operators that remain between them.
    """
    joined, left = [operands[0]], []
    chain: list[Expression] = []
    signs: list[str] = []
    for operator, operand in zip([*operators, ""], [*operands[1:], None], strict=True):
        if operand is not None and _RANKS.get(operator) == rank:
            chain = chain or [joined.pop()]
            chain.append(operand)
            signs.append(operator)
            continue
        if chain:
            joined.append(BinaryOp(chain[0].start, chain[-1].end, tuple(chain), tuple(signs)))
            chain, signs = [], []
        if operand is not None:
            left.append(operator)
            joined.append(operand)
    return joined, left


def _literal_key(key: Expression) -> Expression:
    """Return the key of an object; a bare word is a literal."""
    if isinstance(key, VariableRef) and not key.steps:
        return Literal(key.start, key.end, key.root)
    if isinstance(key, Literal) and (key.value is None or isinstance(key.value, bool)):
        words = {None: "null", True: "true", False: "false"}
        return Literal(key.start, key.end, words[key.value])
    return key
