"""Lexer: splits a text into tokens, in time and memory linear in its length.

The lexer tracks its context: quoted text, heredoc or brackets. So it can omit insignificant
newlines, and the parser needs no rule for them. The lexer records invalid characters and skips
them. The parser can then find further errors.
"""

import re

import msgspec

from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText

MAX_NESTING = 100  # nesting of brackets; a job has about ten levels
MAX_TOKENS = 100_000  # about twenty thousand lines
MAX_PROBLEMS = 1_000  # enough for any reader
# Escapes, and runs of other characters, in one match: it holds the GIL for a millisecond. A text
# with more of them has several tokens.
_MOST_PARTS = 10_000

# Kinds of tokens. Each operator is its own kind.
IDENT = "name"
NUMBER = "number"
STRING = "text"  # quoted text without interpolations
HEREDOC = "heredoc"  # a heredoc without interpolations, including its markers
OPEN_QUOTE = "opening quote"
CLOSE_QUOTE = "closing quote"
OPEN_HEREDOC = "heredoc mark"
CLOSE_HEREDOC = "closing heredoc mark"
TEXT = "text of a template"
HOLE = "${"
CONTROL = "%{"
CLOSE_HOLE = "} of a template"
NEWLINE = "newline"
END = "end of file"


class TokenList(msgspec.Struct, frozen=True):
    """The tokens of a source as parallel lists; the last token is `END`."""

    source: SourceText
    kinds: list[str]
    starts: list[int]
    ends: list[int]
    problems: list[Diagnostic]


# Quantifiers are possessive (`++`, `*+`), so that no text causes backtracking.
_BLANK = r"(?:[ \t]++|/\*.*?(?:\*/|\Z))*+"
_LITERAL = r"\\[^\n]|\$++(?!\{)|\${2,}+\{|%++(?!\{)|%{2,}+\{"  # `$${` is an escaped `${`
_TOKEN = re.compile(
    rf"""{_BLANK}(?:
    (?P<newline>\r?\n|(?:\#|//)[^\n]*+(?:\n|\Z))
    |(?P<name>[^\W\d][\w\-]*+)
    |(?P<number>\d++(?:\.\d++)?(?:[eE][+-]?\d++)?)
    |(?P<text>"(?:[^"\\$%\n]++|{_LITERAL}){{0,{_MOST_PARTS}}}+")
    |(?P<quote>")
    |(?P<heredoc><<-?(?:[^\W\d]|[^\x00-\x7f])(?:[\w\-]|[^\x00-\x7f])*+\r?\n)
    |(?P<operator>\.\.\.|==|!=|<=|>=|&&|\|\||=>|::|[-=!<>+*/%?:.,()\[\]{{}}])
    |(?P<close>~\}})
    |(?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WIDE_NAME = re.compile(r"[\w\-]*+")
_QUOTED_TEXT = re.compile(rf'(?:[^"\\$%\n]++|{_LITERAL}){{1,{_MOST_PARTS}}}+')
_LINE_TEXT = re.compile(
    r"(?:[^$%\n]++|\$++(?!\{)|\${2,}+\{|%++(?!\{)|%{2,}+\{)"
    rf"{{0,{_MOST_PARTS}}}+\n?"
)
_BLANKS = re.compile(r"[ \t]*+")
_SKIPPED = re.compile(_BLANK, re.DOTALL)
_LINE_END = re.compile(r"[ \t]*+\r?(?:\n|\Z)")
_FOR = re.compile(r"(?:\s++|/\*.*?(?:\*/|\Z)|(?:#|//)[^\n]*+(?:\n|\Z))*+for\b(?!-)", re.DOTALL)

_BARE = "<<\n"  # a heredoc without an end marker, closed by the end of the text
_BEFORE_A_BODY = frozenset({IDENT, STRING, CLOSE_QUOTE})
_CLOSING = {")": "(", "]": "[", "}": "{"}


def tokenize(source: SourceText, template_start: int | None = None) -> TokenList:
    """Return the tokens of a source. Raises `HclError` if there are too many.

    With `template_start`, return the tokens of a template from this offset to the end.
    """
    lexer = _Lexer(source)
    if template_start is not None:
        lexer.at = template_start
        lexer.open.append(_BARE)
    lexer.run()
    return TokenList(source, lexer.kinds, lexer.starts, lexer.ends, lexer.problems)


class _Lexer:
    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.text = source.text
        self.at = 1 if source.text.startswith("\ufeff") else 0
        self.kinds: list[str] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.problems: list[Diagnostic] = []
        # Open contexts: brackets, "for" for a brace with insignificant newlines, quotes, and
        # "<<MARK" for heredocs.
        self.open: list[str] = []
        self._told: set[str] = set()

    def run(self) -> None:
        while True:
            inside = self.open[-1] if self.open else ""
            if inside == '"':
                self._quoted()
            elif inside.startswith("<<"):
                self._heredoc_line(inside[2:])
            elif not self._token(inside):
                break
            if len(self.problems) > MAX_PROBLEMS:
                raise HclError(self.problems)
            if len(self.kinds) > MAX_TOKENS:
                raise self._limit(f"more than {MAX_TOKENS} tokens", "Text too long")
        self._add(END, len(self.text), len(self.text))

    def _add(self, kind: str, start: int, end: int) -> None:
        self.kinds.append(kind)
        self.starts.append(start)
        self.ends.append(end)
        self.at = end

    def _push(self, construct: str) -> None:
        if len(self.open) >= MAX_NESTING:
            raise self._limit(f"more than {MAX_NESTING} levels of brackets", "Nested too deep")
        self.open.append(construct)

    def _limit(self, problem: str, summary: str) -> HclError:
        detail = f"The text has {problem}."
        return HclError([self._problem(summary, detail, self.starts[-1], self.ends[-1])])

    def _problem(self, summary: str, detail: str, start: int, end: int) -> Diagnostic:
        return Diagnostic(summary=summary, detail=detail, source=self.source, start=start, end=end)

    # --- outside of texts ---

    def _token(self, inside: str) -> bool:
        """Consume the next token; return whether there was a token."""
        match = _TOKEN.match(self.text, self.at)
        kind = match.lastgroup if match else None
        if match is None or kind is None:
            self._odd_character()
            return True
        start, end = match.span(kind)
        if kind == "operator":
            self._operator(self.text[start:end], start, end)
        elif kind == "newline":
            self.at = end
            if inside in ("", "{"):
                self._add(NEWLINE, start, end)
        elif kind == "quote":
            self._add(OPEN_QUOTE, start, end)
            self._push('"')
        elif kind == "heredoc":
            self._heredoc(start, end)
        elif kind == "close":
            self._close_hole(start, end, inside)
        elif kind == "name":
            self._add(IDENT, start, self._end_of_name(start, end))
        elif kind == "end":
            return False
        else:
            self._add(kind, start, end)
        return True

    def _operator(self, operator: str, start: int, end: int) -> None:
        if operator in _CLOSING:
            self._closing(operator, start, end)
            return
        self._add(operator, start, end)
        if operator in ("(", "["):
            self._push(operator)
        elif operator == "{":
            self._push("for" if self._opens_for() else "{")

    def _closing(self, operator: str, start: int, end: int) -> None:
        """Close a bracket.

        A brace also closes the brackets that are still open inside it. The parser reports them as
        errors.
        """
        while operator == "}" and self.open and self.open[-1] in ("(", "["):
            self.open.pop()
        inside = self.open[-1] if self.open else ""
        is_hole = operator == "}" and inside == HOLE
        self._add(CLOSE_HOLE if is_hole else operator, start, end)
        if is_hole or ("{" if inside == "for" else inside) == _CLOSING[operator]:
            self.open.pop()

    def _opens_for(self) -> bool:
        """Return whether the last brace opens a `for` expression.

        Newlines are insignificant in such an expression.
        """
        if len(self.kinds) > 1 and self.kinds[-2] in _BEFORE_A_BODY:
            return False
        return _FOR.match(self.text, self.at) is not None

    def _close_hole(self, start: int, end: int, inside: str) -> None:
        if inside == HOLE:
            self.open.pop()
            self._add(CLOSE_HOLE, start, end)
        else:
            self._invalid_character(start, start + 1)

    def _end_of_name(self, start: int, end: int) -> int:
        """Return the end of a name, which can contain non-ASCII characters."""
        text = self.text
        while end < len(text) and text[end] > "\x7f" and ("a" + text[end]).isidentifier():
            match = _WIDE_NAME.match(text, end + 1)
            end = match.end() if match else end + 1
        return end

    def _odd_character(self) -> None:
        """Consume a name with a non-ASCII start, or record an invalid character."""
        match = _SKIPPED.match(self.text, self.at)
        start = match.end() if match else self.at
        if self.text[start].isidentifier():
            self._add(IDENT, start, self._end_of_name(start, start + 1))
        else:
            self._invalid_character(start, start + 1)

    def _invalid_character(self, start: int, end: int) -> None:
        self.at = end
        char = self.text[start:end]
        summary, detail = _ODD.get(char, _UNKNOWN)
        if char in _ODD and char in self._told:
            return
        self._told.add(char)
        self.problems.append(self._problem(summary, detail, start, end))

    # --- quoted text and heredocs ---

    def _quoted(self) -> None:
        start = self.at
        if match := _QUOTED_TEXT.match(self.text, start):
            self._add(TEXT, start, match.end())
        elif self.text.startswith('"', start):
            self.open.pop()
            self._add(CLOSE_QUOTE, start, start + 1)
        elif self.text.startswith(("${", "%{"), start):
            self._open_hole()
        else:
            self._unclosed_text(start)

    def _unclosed_text(self, start: int) -> None:
        """End a text that has no closing quote on its line."""
        self.open.pop()
        if self.text.startswith("\\", start):  # at the end of a line
            self.at = start = start + 1
        end = min(start + 1, len(self.text))
        self.problems.append(self._problem(*_MULTI_LINE, start, end))
        self._add(CLOSE_QUOTE, start, start)

    def _open_hole(self) -> None:
        start = self.at
        kind = HOLE if self.text[start] == "$" else CONTROL
        end = start + 2 + self.text.startswith("~", start + 2)
        self._add(kind, start, end)
        self._push(HOLE)

    def _heredoc(self, start: int, end: int) -> None:
        mark = self.text[start:end].lstrip("<-").rstrip()
        closing = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*(?=\r?$)", re.MULTILINE)
        match = closing.search(self.text, end)
        if match:
            body = self.text[end : match.start()]
            if "${" not in body and "%{" not in body:
                self._add(HEREDOC, start, match.end())
                return
        self._add(OPEN_HEREDOC, start, end)
        self._push(f"<<{mark}")

    def _heredoc_line(self, mark: str) -> None:
        """Consume the next token of a heredoc: its end marker, an opening `${` or `%{`, or text.

        Text ends at the end of its line, or before a `${` or `%{`.
        """
        start = self.at
        if start and self.text[start - 1] == "\n":
            blanks = _BLANKS.match(self.text, start)
            word = blanks.end() if blanks else start
            if self.text.startswith(mark, word) and _ends_line(self.text, word + len(mark)):
                self.open.pop()
                self._add(CLOSE_HEREDOC, start, word + len(mark))
                return
        if self.text.startswith(("${", "%{"), start):
            self._open_hole()
            return
        match = _LINE_TEXT.match(self.text, start)
        if match is None or match.end() == start:
            self.open.pop()  # the end of the file: the parser reports it
        else:
            self._add(TEXT, start, match.end())


def _ends_line(text: str, offset: int) -> bool:
    return _LINE_END.match(text, offset) is not None


_UNKNOWN = ("Invalid character", "This character is not used within the language.")
_CURLY = (
    "Invalid character",
    '"Curly quotes" are not valid here; write a string in "straight quotes".',
)
_MULTI_LINE = (
    "Invalid multi-line string",
    'A quoted string must end on the same line. Write \\n for a new line, or use a "heredoc", like <<EOT.',
)
# Common mistakes from other languages, reported once per text.
_ODD = {
    "'": ("Invalid character", 'Single quotes are not valid. Use double quotes (") for a string.'),
    "`": (
        "Invalid character",
        'The "`" character is not valid. For a string of several lines, use a "heredoc", like <<EOT.',
    ),
    ";": (
        "Invalid character",
        'The ";" character is not valid. An argument or a block ends at the end of its line; '
        "the items of a list are separated by commas.",
    ),
    "\u201c": _CURLY,
    "\u201d": _CURLY,
    "\u2018": _CURLY,
    "\u2019": _CURLY,
    "&": (
        "Unsupported operator",
        'Bitwise operators are not supported. Did you mean boolean AND ("&&")?',
    ),
    "|": (
        "Unsupported operator",
        'Bitwise operators are not supported. Did you mean boolean OR ("||")?',
    ),
    "^": ("Unsupported operator", "Bitwise operators are not supported."),
}
