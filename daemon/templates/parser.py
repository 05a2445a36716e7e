"""Parser of templates (pkg.go.dev/text/template, "Actions" and "Pipelines"). No I/O."""

from collections.abc import Callable, Container, Iterable, Iterator

from daemon.templates.errors import DEEPEST, TemplateError, UnknownFunction
from daemon.templates.go_literals import char, number, text
from daemon.templates.lexer import TemplateToken, TokenType, tokenize
from daemon.templates.nodes import (
    Body,
    BreakNode,
    CommandNode,
    ConstantNode,
    DotNode,
    FieldChainNode,
    FunctionNode,
    IfNode,
    Node,
    Operand,
    OutputNode,
    ParsedTemplate,
    PipeNode,
    RangeNode,
    TemplateCallNode,
    TextNode,
    VariableNode,
    WithNode,
)
from daemon.text.go_format import quote

LONGEST_TEXT = 512 * 1024  # characters of a template
_BLOCKS: dict[str, type[IfNode | WithNode | RangeNode]] = {
    "if": IfNode,
    "with": WithNode,
    "range": RangeNode,
}
_CONSTANTS = {"true": True, "false": False, "nil": None}
_LITERALS: dict[TokenType, Callable[[str], object]] = {
    TokenType.TEXT: text,
    TokenType.CHAR: char,
    TokenType.NUMBER: number,
}
_KEYWORDS = {*_BLOCKS, "else", "end", "define", "block", "template", "break", "continue"}


def parse(
    source: str, functions: Container[str], left: str = "{{", right: str = "}}"
) -> ParsedTemplate:
    """Parse a template. Raises `TemplateError` with the line of a syntax error."""
    if len(source) > LONGEST_TEXT:
        raise TemplateError(f"the template has more than {LONGEST_TEXT} characters")
    parser = _Parser(tokenize(source, left or "{{", right or "}}"), functions)
    body = parser.body(until=())
    return ParsedTemplate(body, parser.templates)


class _Parser:
    def __init__(self, tokens: Iterable[TemplateToken], functions: Container[str]) -> None:
        self._words: Iterator[TemplateToken] = iter(tokens)
        self._functions = functions
        self._ahead: list[TemplateToken] = []
        self._last = TemplateToken(TokenType.END, "", 1)
        self._depth = self._loops = 0
        self._known = ["$"]  # variables
        self.templates: dict[str, Body] = {}

    # --- tokens ---

    def _peek(self) -> TemplateToken | None:
        if not self._ahead:
            word = next(self._words, None)
            if word is None:
                return None
            self._ahead.append(word)
        return self._ahead[-1]

    def _next(self) -> TemplateToken:
        word = self._peek()
        if word is None:
            raise self._fault('unexpected end of the template: an "end" is missing')
        self._ahead.pop()
        self._last = word
        return word

    def _fault(self, problem: str) -> TemplateError:
        return TemplateError(f"line {self._last.line}: {problem}")

    def _is(self, kind: TokenType, *texts: str) -> bool:
        word = self._peek()
        return word is not None and word.kind is kind and (not texts or word.text in texts)

    def _take(self, kind: TokenType, *texts: str) -> TemplateToken | None:
        return self._next() if self._is(kind, *texts) else None

    def _end(self, where: str) -> None:
        if not self._take(TokenType.END):
            raise self._fault(f"unexpected {quote(self._next().text)} in {where}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._fault(f"blocks or brackets are nested more than {DEEPEST} deep")

    # --- actions ---

    def body(self, until: tuple[str, ...]) -> Body:
        """Return all nodes up to one of these keywords, which is also consumed."""
        self._deeper()
        nodes: list[Node] = []
        while (word := self._peek()) is not None:
            if word.kind is TokenType.PLAIN:
                self._next()
                if word.text:
                    nodes.append(TextNode(word.text))
            elif word.kind is TokenType.NAME and word.text in until:
                self._next()
                self._depth -= 1
                return tuple(nodes)
            elif (node := self._action()) is not None:
                nodes.append(node)
        if until:
            raise self._fault('unexpected end of the template: an "end" is missing')
        return tuple(nodes)

    def _action(self) -> Node | None:
        word = self._peek()
        if word is None or word.kind is not TokenType.NAME or word.text not in _KEYWORDS:
            pipe = self._pipeline("command")
            self._end("command")
            return OutputNode(pipe)
        self._next()
        match word.text:
            case "if" | "with" | "range":
                return self._block(word.text)
            case "define":
                self._define()
                return None
            case "block":
                return self._define_here(word.line)
            case "template":
                return self._call(word.line)
            case "break" | "continue":
                return self._leave(word.text)
        raise self._fault(f"unexpected {quote(word.text)}")

    def _block(self, keyword: str) -> Node:
        variable_count = len(self._known)
        pipe = self._pipeline(keyword)
        self._end(keyword)
        self._loops += keyword == "range"
        body = self.body(until=("else", "end"))
        self._loops -= keyword == "range"
        otherwise: Body = ()
        if self._last.text == "else":
            otherwise = self._else_branch(keyword)
        else:
            self._end("end")
        del self._known[variable_count:]
        return _BLOCKS[keyword](pipe, body, otherwise)

    def _else_branch(self, keyword: str) -> Body:
        if keyword != "range" and self._take(TokenType.NAME, keyword):
            self._deeper()
            chained = self._block(keyword)  # it consumes the `end` of both blocks
            self._depth -= 1
            return (chained,)
        self._end("else")
        body = self.body(until=("end",))
        self._end("end")
        return body

    def _define(self) -> None:
        name = self._name("define")
        self._end("define")
        self.templates[name] = self._nested_definition()

    def _define_here(self, line: int) -> Node:
        name = self._name("block")
        pipe = self._pipeline("block")
        self._end("block")
        body = self._nested_definition()
        self.templates.setdefault(name, body)
        return TemplateCallNode(line, name, pipe)

    def _nested_definition(self) -> Body:
        """Parse the body of a nested definition, in a new scope of variables and loops."""
        outer, self._known = self._known, ["$"]
        loops, self._loops = self._loops, 0
        body = self.body(until=("end",))
        self._known, self._loops = outer, loops
        self._end("end")
        return body

    def _call(self, line: int) -> Node:
        name = self._name("template")
        pipe = None if self._is(TokenType.END) else self._pipeline("template")
        self._end("template")
        return TemplateCallNode(line, name, pipe)

    def _name(self, where: str) -> str:
        word = self._take(TokenType.TEXT)
        if word is None:
            raise self._fault(f"{where} needs the name of a template in quotes")
        return text(word.text)

    def _leave(self, keyword: str) -> Node:
        if not self._loops:
            raise self._fault(f"{keyword} outside of a range")
        self._end(keyword)
        return BreakNode(ends=keyword == "break")

    # --- pipelines ---

    def _pipeline(self, where: str) -> PipeNode:
        line = self._last.line
        variables, declares = self._variables(where)
        commands = [self._command(where)]
        while self._take(TokenType.SIGN, "|"):
            commands.append(self._command(where))
        if declares:
            self._known += variables
        for command in commands[1:]:
            if isinstance(command.operands[0], (ConstantNode, DotNode)):
                raise self._fault("only a function can follow a |")
        return PipeNode(line, tuple(commands), tuple(variables), declares)

    def _variables(self, where: str) -> tuple[list[str], bool]:
        """Consume `$x :=`, `$x =` or, in a range, `$i, $x :=`.

        `where` is the keyword of the action. Return the names and whether they are new.
        """
        first = self._take(TokenType.VARIABLE)
        if first is None:
            return [], False
        names = [first.text]
        if where == "range" and self._take(TokenType.SIGN, ","):
            second = self._take(TokenType.VARIABLE)
            if second is None:
                raise self._fault("range can only initialize variables")
            names.append(second.text)
        sign = self._take(TokenType.SIGN, ":=", "=")
        if sign is None and len(names) == 1:
            self._ahead.append(first)  # the variable is an operand
            return [], False
        if sign is None:
            raise self._fault("range needs := or = after its variables")
        declares = sign.text == ":="
        for name in names:
            if not declares:
                self._require(name)
        return names, declares

    def _require(self, name: str) -> None:
        if name not in self._known:
            raise self._fault(f"undefined variable {quote(name)}")

    def _command(self, where: str) -> CommandNode:
        operands = []
        while (operand := self._operand()) is not None:
            operands.append(operand)
        if not operands:
            raise self._fault(f"missing value for {where}")
        return CommandNode(tuple(operands))

    def _operand(self) -> Operand | None:
        operand = self._term()
        if operand is None:
            return None
        names = []
        while (word := self._peek()) and word.kind is TokenType.FIELD and not word.is_apart:
            names.append(self._next().text[1:])
        if not names:
            return operand
        if isinstance(operand, ConstantNode):
            raise self._fault("a constant has no fields")
        if isinstance(operand, FieldChainNode):
            return FieldChainNode(operand.of, (*operand.names, *names))
        return FieldChainNode(operand, tuple(names))

    def _term(self) -> Operand | None:
        word = self._peek()
        if word is None:
            return None
        if word.kind in _LITERALS:
            return ConstantNode(self._literal(self._next()))
        if word.kind is TokenType.FIELD:
            return FieldChainNode(DotNode(), (self._next().text[1:],))
        if word.kind is TokenType.VARIABLE:
            self._next()
            self._require(word.text)
            return VariableNode(word.text)
        if word.kind is TokenType.NAME:
            return self._named()
        if self._take(TokenType.SIGN, "."):
            return DotNode()
        return self._bracket() if self._take(TokenType.SIGN, "(") else None

    def _literal(self, word: TemplateToken) -> object:
        try:
            return _LITERALS[word.kind](word.text)
        except ValueError as error:
            raise self._fault(str(error)) from error

    def _named(self) -> Operand:
        name = self._next().text
        if name in _CONSTANTS:
            return ConstantNode(_CONSTANTS[name])
        if name not in self._functions:
            raise UnknownFunction(f"line {self._last.line}", name)
        return FunctionNode(name)

    def _bracket(self) -> PipeNode:
        self._deeper()
        pipe = self._pipeline("brackets")
        if not self._take(TokenType.SIGN, ")"):
            raise self._fault("unclosed left paren")
        self._depth -= 1
        return pipe
