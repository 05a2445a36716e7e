"""Canonical formatting: the layout of a text changes, its meaning does not.

Each nesting level is indented by two spaces. Equals signs of adjacent arguments are aligned, and so
are their comments. Quoted texts, heredocs and blank lines stay unchanged.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from daemon.jobspec.hcl import graphemes
from daemon.jobspec.hcl.lexer import (
    CLOSE_HEREDOC,
    CLOSE_QUOTE,
    END,
    HEREDOC,
    IDENT,
    NEWLINE,
    NUMBER,
    OPEN_HEREDOC,
    OPEN_QUOTE,
    STRING,
    tokenize,
)
from daemon.jobspec.hcl.parser import read_body
from daemon.jobspec.hcl.source import SourceText

_COMMENT = "comment"
_BETWEEN = re.compile(r"(?P<block>/\*.*?\*/)|(?P<line>(?:#|//)[^\n]*)|(?P<newline>\n)", re.DOTALL)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_WHOLE = {OPEN_QUOTE: CLOSE_QUOTE, OPEN_HEREDOC: CLOSE_HEREDOC}
_OPERANDS = frozenset({IDENT, NUMBER, STRING, HEREDOC, ")", "]", "}"})
_KEYWORDS = frozenset({"for", "in", "if"})


class _Word(msgspec.Struct):
    kind: str
    text: str
    spaces: int = 1  # number of spaces before the word


class _Line(msgspec.Struct):
    words: list[_Word]
    comment: str = ""  # the comment after the words

    @property
    def depth(self) -> int:
        """Return how many more brackets the line opens than it closes."""
        return _depth(self.words)


def formatted(source: SourceText) -> str:
    """Return a text in canonical form. Raises `HclError` on a syntax error."""
    read_body(source)
    lines = list(_lines(source))
    for line in lines:
        _space(line.words)
    _align_values(lines)
    _align_comments(lines)
    text = "\n".join(_indented(lines)).rstrip("\n")
    return f"{text}\n" if text else ""


# --- lines of words ---


def _lines(source: SourceText) -> Iterator[_Line]:
    line = _Line([])
    for word in _format_tokens(source):
        if word.kind == NEWLINE:
            yield line
            line = _Line([])
        elif word.kind == _COMMENT and not word.text.startswith("/*") and line.words:
            line.comment = word.text
        else:
            line.words.append(word)
    if line.words:
        yield line


def _format_tokens(source: SourceText) -> Iterator[_Word]:
    """Yield all words, comments and newlines. A quoted text or a heredoc is one word."""
    tokens, text = tokenize(source), source.text
    position = 1 if text.startswith("\ufeff") else 0
    index = 0
    while tokens.kinds[index] != END:
        kind, start, end = tokens.kinds[index], tokens.starts[index], tokens.ends[index]
        yield from _between(text[position:start])
        if kind in _WHOLE:
            index = _end_of_whole(tokens.kinds, index)
            end = tokens.ends[index]
            kind = STRING if kind == OPEN_QUOTE else HEREDOC
        if kind == NEWLINE:
            yield from _between(text[start:end])
        else:
            yield _Word(kind, text[start:end])
        position = end
        index += 1
    yield from _between(text[position:])


def _end_of_whole(kinds: Sequence[str], index: int) -> int:
    """Return the index of the token that closes the quoted text or heredoc opened at `index`."""
    depth = 0
    while True:
        depth += (kinds[index] in _WHOLE) - (kinds[index] in _WHOLE.values())
        if not depth:
            return index
        index += 1


def _between(text: str) -> Iterator[_Word]:
    for match in _BETWEEN.finditer(text):
        if match.lastgroup == "newline":
            yield _Word(NEWLINE, "\n")
        else:
            yield _Word(_COMMENT, match[0].rstrip())


# --- spaces within a line ---


def _space(words: list[_Word]) -> None:
    """Set the spaces between the words of a line."""
    for index, word in enumerate(words):
        before = words[index - 1] if index else None
        earlier = words[index - 2] if index > 1 else None
        word.spaces = 1 if before and _are_apart(earlier, before, word) else 0


def _are_apart(earlier: _Word | None, before: _Word, word: _Word) -> bool:
    """Return whether a space separates `before` and `word`; `earlier` precedes `before`."""
    if word.kind in (",", ".", "...", "::", ")", "]") or before.kind in ("(", "[", ".", "::", "!"):
        return False
    if before.kind == "{" and word.kind == "}":
        return False
    if before.kind == "-" and _is_sign(earlier):
        return False
    if word.kind in ("(", "["):
        is_operand = before.kind in _OPERANDS and before.text not in _KEYWORDS
        return not is_operand or (word.kind == "(" and before.kind != IDENT)
    return not (before.kind == "*" and earlier is not None and earlier.kind in ("[", "."))


def _is_sign(before: _Word | None) -> bool:
    """Return whether a minus is a sign, according to the preceding token."""
    return before is None or before.kind not in _OPERANDS or before.text in _KEYWORDS


def _depth(words: Sequence[_Word]) -> int:
    return sum([(word.kind in _OPENING) - (word.kind in _CLOSING) for word in words])


# --- columns ---


def _align_values(lines: Sequence[_Line]) -> None:
    """Align the equals signs of adjacent arguments. A heredoc ends a group of such arguments."""
    chain: list[tuple[_Word, int]] = []
    for line in lines:
        equals_index = _equals(line)
        if equals_index is not None:
            chain.append((line.words[equals_index], _width(line.words[:equals_index])))
        if equals_index is None or any("\n" in word.text for word in line.words):
            _align(chain)
            chain = []
    _align(chain)


def _equals(line: _Line) -> int | None:
    """Return the index of the word that is a line's equals sign.

    Return None if the line has none, or if the value continues on the next line.
    """
    for index, word in enumerate(line.words):
        if index and word.kind == "=":
            return index if _depth(line.words[index:]) == 0 else None
    return None


def _align_comments(lines: Sequence[_Line]) -> None:
    """Align the comments of adjacent lines."""
    chain: list[tuple[_Word, int]] = []
    for line in lines:
        if not line.comment:
            _align(chain)
            chain = []
            continue
        comment = _Word(_COMMENT, line.comment)
        chain.append((comment, _width(line.words)))
        line.words.append(comment)
    _align(chain)


def _align(chain: Sequence[tuple[_Word, int]]) -> None:
    """Align words in one column, one space after the widest preceding text."""
    widest = max([width for _, width in chain], default=0)
    for word, width in chain:
        word.spaces = widest - width + 1


def _width(words: Sequence[_Word]) -> int:
    """Return the width of words; if they contain newlines, the width after the last newline."""
    width = 0
    for word in words:
        _, newline, last = word.text.rpartition("\n")
        width = graphemes.count(last) + (0 if newline else width + word.spaces)
    return width


def _indented(lines: Sequence[_Line]) -> Iterator[str]:
    """Yield lines indented by bracket depth. Several brackets opened on one line count once."""
    opened: list[int] = []
    for line in lines:
        depth = line.depth
        if depth < 0:
            _close(opened, -depth)
        body = "".join([f"{' ' * word.spaces}{word.text}" for word in line.words])
        yield f"{'  ' * len(opened)}{body}" if body else ""
        if depth > 0:
            opened.append(depth)


def _close(opened: list[int], count: int) -> None:
    while opened and count:
        taken = min(opened[-1], count)
        count -= taken
        opened[-1] -= taken
        if not opened[-1]:
            opened.pop()
