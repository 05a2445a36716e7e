"""A position in a list of tokens, with the basic operations of the parsers."""

from daemon.jobspec.hcl.lexer import END, MAX_NESTING, TokenList
from daemon.jobspec.hcl.source import Diagnostic
from daemon.jobspec.hcl.tree import Expression


class HclSyntaxError(Exception):
    """The text is invalid at this position; parsing continues with the next argument or block."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic


class TokenCursor:
    """A reader of tokens. `problems` collects the errors that do not stop the parser."""

    def __init__(self, tokens: TokenList) -> None:
        self.source = tokens.source
        self.kinds, self.starts, self.ends = tokens.kinds, tokens.starts, tokens.ends
        self.at = 0
        self.depth = 0
        self.problems: list[Diagnostic] = list(tokens.problems)

    @property
    def kind(self) -> str:
        """Return the kind of the next token."""
        return self.kinds[self.at]

    @property
    def start(self) -> int:
        """Return the offset at which the next token starts."""
        return self.starts[self.at]

    @property
    def last_end(self) -> int:
        """Return the offset at which the previous token ends."""
        return self.ends[self.at - 1]

    def word(self) -> str:
        """Return the text of the next token."""
        return self.source.text[self.starts[self.at] : self.ends[self.at]]

    def take(self) -> str:
        """Consume the next token and return its text."""
        word = self.word()
        self.at += 1
        return word

    def accept(self, kind: str) -> bool:
        """Consume the next token if it has this kind; return whether it had this kind."""
        if self.kinds[self.at] != kind:
            return False
        self.at += 1
        return True

    def diagnostic(self, summary: str, detail: str, start: int, end: int) -> Diagnostic:
        """Return a diagnostic about the text between two offsets."""
        return Diagnostic(summary=summary, detail=detail, source=self.source, start=start, end=end)

    def error(self, summary: str, detail: str) -> HclSyntaxError:
        """Return an error at the next token."""
        return HclSyntaxError(
            self.diagnostic(summary, detail, self.starts[self.at], self.ends[self.at])
        )

    def error_at(self, start: int, end: int, summary: str, detail: str) -> HclSyntaxError:
        """Return an error at a position."""
        return HclSyntaxError(self.diagnostic(summary, detail, start, end))

    def descend(self) -> None:
        """Enter a deeper nesting level. The caller restores `depth`."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(
                "Nested too deep", f"Expressions can have at most {MAX_NESTING} levels."
            )

    def expression(self) -> Expression:
        """Return the next expression."""
        raise NotImplementedError

    def no_expression(self) -> HclSyntaxError:
        """Return the error about a missing expression."""
        if self.kind == END:
            return self.error(
                "Missing expression",
                "Expected the start of an expression, but found the end of the file.",
            )
        return self.error(
            "Invalid expression",
            "Expected the start of an expression, but found an invalid expression token.",
        )
