"""Templates: quoted texts and heredocs with interpolations and directives."""

from typing import NoReturn

import msgspec

from daemon.jobspec.hcl.cursor import TokenCursor
from daemon.jobspec.hcl.lexer import (
    CLOSE_HEREDOC,
    CLOSE_HOLE,
    CLOSE_QUOTE,
    CONTROL,
    END,
    HOLE,
    IDENT,
    TEXT,
)
from daemon.jobspec.hcl.source import did_you_mean
from daemon.jobspec.hcl.strings import (
    SPACES,
    flushed,
    indentation,
    is_blank,
    normal,
    unescape,
    unescape_heredoc,
)
from daemon.jobspec.hcl.tree import (
    Expression,
    Interpolation,
    Literal,
    TemplateExpr,
    TemplateFor,
    TemplateIf,
    TemplateWrap,
)

_KEYWORDS = ("if", "else", "endif", "for", "endfor")


class _Text(msgspec.Struct):
    start: int
    end: int
    text: str


class _Directive(msgspec.Struct):
    start: int
    end: int
    keyword: str
    names: tuple[str, str] = ("", "")
    subject: Expression | None = None


_Part = _Text | Interpolation | _Directive


class TemplateParser(TokenCursor):
    """A parser of templates. A subclass parses their expressions."""

    def simple_text(self) -> TemplateExpr:
        """Return quoted text without interpolations."""
        start, end = self.starts[self.at], self.ends[self.at]
        self.at += 1
        if end - start == 2:
            return TemplateExpr(start, end, ())
        text = unescape(self.source, start + 1, end - 1, self.problems.append)
        return TemplateExpr(start, end, (Literal(start + 1, end - 1, normal(text)),))

    def simple_heredoc(self) -> TemplateExpr:
        """Return a heredoc without interpolations."""
        start, end = self.starts[self.at], self.ends[self.at]
        self.at += 1
        text = self.source.text
        first = text.index("\n", start) + 1
        last = text.rindex("\n", start, end) + 1
        body = unescape_heredoc(text[first:last])
        if text[start + 2] == "-":
            body = flushed(body)
        return TemplateExpr(start, end, (Literal(first, last, normal(body)),))

    def quoted(self) -> Expression:
        """Return quoted text with interpolations."""
        start = self.starts[self.at]
        self.at += 1
        parts = self._parts(CLOSE_QUOTE, is_quoted=True)
        if len(parts) == 1 and isinstance(parts[0], Interpolation):
            return TemplateWrap(start, self.last_end, parts[0].inner, parts[0].text)
        return self._template(start, parts)

    def heredoc(self) -> Expression:
        """Return a heredoc with interpolations."""
        start = self.starts[self.at]
        flush = self.source.text[start + 2] == "-"
        self.at += 1
        parts = self._parts(CLOSE_HEREDOC, is_quoted=False)
        if flush:
            _flush(parts)
        return self._template(start, parts)

    def bare(self) -> Expression:
        """Return the whole text as a template."""
        parts = self._parts(END, is_quoted=False)
        start = self.starts[0]
        if len(parts) == 1 and isinstance(parts[0], Interpolation):
            return TemplateWrap(start, self.last_end, parts[0].inner, parts[0].text)
        return self._template(start, parts)

    # --- parts ---

    def _parts(self, closing: str, *, is_quoted: bool) -> list[_Part]:
        """Return the parts up to the closing marker."""
        parts: list[_Part] = []
        trims = False
        while not self.accept(closing):
            kind = self.kind
            if kind == TEXT:
                text = self._text(is_quoted=is_quoted)
                if trims:
                    text.text = text.text.lstrip(SPACES)
                trims = False
                parts.append(text)
                continue
            if kind not in (HOLE, CONTROL):
                raise self.error(
                    "Unterminated template string", "No closing marker was found for the string."
                )
            if self.word().endswith("~") and parts and isinstance(parts[-1], _Text):
                parts[-1].text = parts[-1].text.rstrip(SPACES)
            parts.append(self._interpolation() if kind == HOLE else self._directive())
            trims = self.source.text[self.starts[self.at - 1]] == "~"
        return parts

    def _text(self, *, is_quoted: bool) -> _Text:
        start, end = self.starts[self.at], self.ends[self.at]
        self.at += 1
        source = self.source
        if is_quoted:
            text = unescape(source, start, end, self.problems.append)
        else:
            text = unescape_heredoc(source.text[start:end])
        return _Text(start, end, normal(text))

    def _interpolation(self) -> Interpolation:
        start, inner_start = self.starts[self.at], self.ends[self.at]
        self.at += 1
        inner = self.expression()
        inner_end = self.starts[self.at]
        self._close("interpolation expression")
        return Interpolation(start, self.last_end, inner, self.source.text[inner_start:inner_end])

    def _close(self, of: str) -> None:
        if not self.accept(CLOSE_HOLE):
            raise self.error(
                f"Extra characters after {of}", "A closing brace is expected to end it."
            )

    def _directive(self) -> _Directive:
        start = self.starts[self.at]
        self.at += 1
        if self.kind != IDENT:
            raise self.error("Invalid template directive", "A keyword is expected here.")
        keyword = self.word()
        if keyword not in _KEYWORDS:
            raise self.error(
                "Invalid template control keyword",
                f'"{keyword}" is not a valid template control keyword.'
                + did_you_mean(keyword, _KEYWORDS),
            )
        self.at += 1
        names, subject = ("", ""), None
        if keyword == "for":
            names = self._names()
        if keyword in ("if", "for"):
            subject = self.expression()
        self._close(f"{keyword} directive")
        return _Directive(start, self.last_end, keyword, names, subject)

    def _names(self) -> tuple[str, str]:
        """Return the names that `for` binds to key and value."""
        names = [self._name()]
        if self.accept(","):
            names.append(self._name())
        if self.kind != IDENT or self.word() != "in":
            raise self.error(
                "Invalid 'for' directive", "For directive requires 'in' keyword after names."
            )
        self.at += 1
        return ("", names[0]) if len(names) == 1 else (names[0], names[1])

    def _name(self) -> str:
        if self.kind != IDENT:
            raise self.error("Invalid 'for' directive", "A name is expected here.")
        return self.take()

    # --- syntax tree ---

    def _template(self, start: int, parts: list[_Part]) -> TemplateExpr:
        end, closing = self.last_end, self.starts[self.at - 1]
        parts.reverse()
        expressions = self._parse_until((), parts, None, closing)
        return TemplateExpr(start, end, expressions)

    def _parse_until(
        self,
        keywords: tuple[str, ...],
        parts: list[_Part],
        opener: _Directive | None,
        closing: int,
    ) -> tuple[Expression, ...]:
        """Return the expressions of all parts before a directive with one of the `keywords`.

        `parts` is in reverse order. The parts are removed from it, but the directive remains.
        """
        expressions: list[Expression] = []
        while parts:
            part = parts[-1]
            if isinstance(part, _Directive) and part.keyword in keywords:
                return tuple(expressions)
            parts.pop()
            if isinstance(part, _Text):
                expressions.append(Literal(part.start, part.end, part.text))
            elif isinstance(part, Interpolation):
                expressions.append(part)
            else:
                self.descend()
                expressions.append(self._controlled(part, parts, closing))
                self.depth -= 1
        if opener is not None:
            self._unended(opener, closing)
        return tuple(expressions)

    def _controlled(self, opener: _Directive, parts: list[_Part], closing: int) -> Expression:
        if opener.keyword not in ("if", "for") or opener.subject is None:
            raise self.error_at(
                opener.start,
                opener.end,
                f"Unexpected {opener.keyword} directive",
                "The control directives within this template are unbalanced.",
            )
        if opener.keyword == "for":
            body_parts = self._parse_until(("endfor",), parts, opener, closing)
            end = parts.pop().end
            body = TemplateExpr(opener.end, end, body_parts)
            return TemplateFor(opener.start, end, *opener.names, opener.subject, body)
        then = self._parse_until(("else", "endif"), parts, opener, closing)
        middle = parts.pop()
        otherwise: tuple[Expression, ...] = ()
        end = middle.end
        if isinstance(middle, _Directive) and middle.keyword == "else":
            otherwise = self._parse_until(("endif",), parts, opener, closing)
            end = parts.pop().end
        return TemplateIf(
            opener.start,
            end,
            opener.subject,
            TemplateExpr(opener.end, middle.start, then),
            TemplateExpr(middle.end, end, otherwise),
        )

    def _unended(self, opener: _Directive, closing: int) -> NoReturn:
        where = self.diagnostic("", "", opener.start, opener.end).where
        raise self.error_at(
            closing,
            min(closing + 1, len(self.source.text)),
            "Unexpected end of template",
            f"The {opener.keyword} directive at {where} is missing its corresponding "
            f"end{opener.keyword} directive.",
        )


def _flush(parts: list[_Part]) -> None:
    """Remove the indentation that all lines have in common. Change the `parts` in place.

    Text that `~` has removed does not count. If `~` removes a newline, the next text does not start
    a line. A line that starts with an interpolation or a directive has no indentation.
    """
    depths: list[int] = []
    begin: list[_Text] = []
    begins_line = True
    for part in parts:
        match part:
            case _Text():
                if begins_line and not is_blank(part.text):
                    depths.append(indentation(part.text))
                    begin.append(part)
                begins_line = part.text.endswith("\n")
            case _:
                if begins_line:
                    depths.append(0)
                begins_line = False
    depth = min(depths, default=0)
    for text in begin:
        text.text = text.text[depth:]
