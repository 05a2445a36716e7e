"""Values of quoted texts and heredocs: escapes and removal of indentation."""

import re
import unicodedata
from collections.abc import Callable, Iterator

from daemon.jobspec.hcl.source import Diagnostic, SourceText

_DIGITS = {"u": (4, "four"), "U": (8, "eight")}
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,4}|U[0-9a-fA-F]{0,8}|.)|\$\$\{|%%\{", re.DOTALL)
_STARTER = re.compile(r"[\x00-\x7f]")
_PIECE = 64 * 1024  # characters: normalizing them takes up to a millisecond
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_DOUBLED = re.compile(r"(\$|%)\1\{")


def normal(text: str) -> str:
    """Return a text in the normal form for comparison (NFC)."""
    if text.isascii():
        return text
    return "".join([unicodedata.normalize("NFC", chunk) for chunk in _pieces(text)])


def _pieces(text: str) -> Iterator[str]:
    """Yield pieces of a text that can be normalized separately: each begins with an ASCII character.

    Normalizing a long text in one call would hold the GIL for long.
    """
    start = 0
    while match := _STARTER.search(text, start + _PIECE):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


def replace_surrogates(text: str) -> str:
    """Return a text without unpaired surrogates, which are not characters."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unescape(source: SourceText, start: int, end: int, note: Callable[[Diagnostic], None]) -> str:
    """Unescape the quoted text between two offsets; `note` receives the errors."""
    text = source.text[start:end]
    if "\\" not in text and "{" not in text:
        return text

    def meaning(match: re.Match[str]) -> str:
        escape = match[1]
        if escape is None:
            return match[0][1:]
        simple = _SIMPLE.get(escape)
        if simple is not None:
            return simple
        char = _from_digits(escape)
        if char is None:
            offset = start + match.start()
            note(_bad_escape(source, escape, offset, start + match.end()))
        return char or ""

    return _ESCAPE.sub(meaning, text)


def _from_digits(escape: str) -> str | None:
    digit_count, _ = _DIGITS.get(escape[0], (0, ""))
    if not digit_count or len(escape) != digit_count + 1:
        return None
    number = int(escape[1:], 16)
    if 0xD800 <= number <= 0xDFFF or number > 0x10FFFF:
        return "\ufffd"  # as in Nomad: no such character exists
    return chr(number)


def _bad_escape(source: SourceText, escape: str, start: int, end: int) -> Diagnostic:
    if escape[0] in _DIGITS:
        _, count = _DIGITS[escape[0]]
        detail = (
            f"The \\{escape[0]} escape sequence must be followed by {count} hexadecimal digits."
        )
    else:
        detail = f'The symbol "{escape}" is not a valid escape sequence selector.'
    return Diagnostic(
        summary="Invalid escape sequence", detail=detail, source=source, start=start, end=end
    )


def unescape_heredoc(text: str) -> str:
    """Unescape a heredoc, whose only escapes are `$${` and `%%{`."""
    return _DOUBLED.sub(r"\1{", text) if "{" in text else text


# Unicode white space; Python's list has four more control characters.
SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def indentation(line: str) -> int:
    """Return the number of leading spaces of a line."""
    return len(line) - len(line.lstrip(SPACES))


def is_blank(line: str) -> bool:
    """Return whether a line has only spaces and its end."""
    return line.endswith("\n") and not line.strip(SPACES)


def flushed(body: str) -> str:
    """Return a `<<-` heredoc without its common indentation.

    Blank lines do not count and stay unchanged.
    """
    lines = _lines(body)
    depth = min((indentation(line) for line in lines if not is_blank(line)), default=0)
    return "".join(line if is_blank(line) else line[depth:] for line in lines)


def _lines(body: str) -> list[str]:
    """Return lines with their ends. Only a newline ends a line, not Unicode's line separators."""
    return [match[0] for match in _LINE.finditer(body)]  # one call would hold the GIL for long
