"""A place in the tokens of a text, and what every reader of them needs."""

from daemon.jobspec.hcl.lexer import END, MAX_NESTING, Tokens
from daemon.jobspec.hcl.source import Diagnostic
from daemon.jobspec.hcl.tree import Expression


class Mistake(Exception):
    """The text is wrong here; reading goes on with the next argument or block."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic


class Cursor:
    """Reads tokens one after the other. `problems` gathers the mistakes that do not end reading."""

    def __init__(self, tokens: Tokens) -> None:
        self.source = tokens.source
        self.kinds, self.starts, self.ends = tokens.kinds, tokens.starts, tokens.ends
        self.at = 0
        self.depth = 0
        self.problems: list[Diagnostic] = list(tokens.problems)

    @property
    def kind(self) -> str:
        """Return the kind of the token that comes next."""
        return self.kinds[self.at]

    @property
    def start(self) -> int:
        """Return where the next token starts."""
        return self.starts[self.at]

    @property
    def last_end(self) -> int:
        """Return where the token taken last ends."""
        return self.ends[self.at - 1]

    def word(self) -> str:
        """Return the text of the next token."""
        return self.source.text[self.starts[self.at] : self.ends[self.at]]

    def take(self) -> str:
        """Pass the next token; return its text."""
        word = self.word()
        self.at += 1
        return word

    def accept(self, kind: str) -> bool:
        """Pass the next token if it is of that kind."""
        if self.kinds[self.at] != kind:
            return False
        self.at += 1
        return True

    def diagnostic(self, summary: str, detail: str, start: int, end: int) -> Diagnostic:
        """Return a diagnostic of this text."""
        return Diagnostic(summary=summary, detail=detail, source=self.source, start=start, end=end)

    def mistake(self, summary: str, detail: str) -> Mistake:
        """Return a mistake at the next token."""
        return Mistake(self.diagnostic(summary, detail, self.starts[self.at], self.ends[self.at]))

    def mistake_at(self, start: int, end: int, summary: str, detail: str) -> Mistake:
        """Return a mistake at a place."""
        return Mistake(self.diagnostic(summary, detail, start, end))

    def descend(self) -> None:
        """Go one level deeper; `depth` is set back by whoever calls this."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.mistake(
                "Nested too deep", f"Expressions may stand within at most {MAX_NESTING} others."
            )

    def expression(self) -> Expression:
        """Return the expression that comes next."""
        raise NotImplementedError

    def no_expression(self) -> Mistake:
        """Return the mistake that there is no expression."""
        if self.kind == END:
            return self.mistake(
                "Missing expression",
                "Expected the start of an expression, but found the end of the file.",
            )
        return self.mistake(
            "Invalid expression",
            "Expected the start of an expression, but found an invalid expression token.",
        )
