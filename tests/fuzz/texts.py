"""Almost valid texts: drawn from a seed, out of the tokens of a language and valid examples."""

import random
import re
from collections.abc import Iterator, Sequence

# Pieces of text that often break parsers of any language.
ODD = (
    *("", "\n", "\r\n", "\t", "\x00", "\\", '"', "'", "`", "é", "\u0301", "👨\u200d👩", "\ufeff"),
    *("\ud800", "\u2028", "\u0664", "9" * 30, "-1", "1e999", "0x", "\x7f", "[" * 200, "(" * 200),
)
HCL = (
    *('job "x" {', 'group "g" {', 'task "t" {', "config {", "}", "{", "}\n", "\n", "(", ")", "["),
    *("]", "=", "==", "=>", ":", ",", ".", "...", "?", "!", "-", "+", "*", "/", "%", "&&", "||"),
    *("${", "%{", "~}", "~", '"', "<<EOT\n", "<<-EOT\n", "EOT\n", "[*]", ".*", "for", "in", "if"),
    *("else", "endif", "endfor", "null", "true", "local", "var", "a", "b.c", "0", "1.5", "1e9"),
    *('"text"', '"a${', "dynamic", "variable", "locals {", "#", "//", "/*", "*/", "\\u00e9"),
    *("upper(", "range(", "length(", "format(", "try(", "merge(", "x = ", "type", "default"),
    *("::", "@"),
)


_WORD = re.compile(r"\w+|[^\w\s]")


def texts(
    seed: int, count: int, corpus: Sequence[str], signs: Sequence[str] = HCL
) -> Iterator[str]:
    """Yield random texts, and changed texts of the corpus; `signs` are tokens of its language.

    Some texts of the corpus are changed anywhere, and few parsers accept these. In others, a word
    or two is changed, mostly to a word from elsewhere. Parsers read more of these.
    """
    chance, signs = random.Random(seed), (*signs, *ODD)
    words = sorted({word for text in corpus for word in _WORD.findall(text)})
    for _ in range(count):
        way = chance.random()
        if way < 0.25:
            yield "".join(chance.choices(signs, k=chance.randint(1, 40)))
        elif way < 0.5:
            yield changed(chance.choice(corpus), chance, signs)
        else:
            yield _reworded(chance.choice(corpus), chance, words)


def changed(text: str, rng: random.Random, signs: Sequence[str] = ODD) -> str:
    """Return a text with some pieces removed, doubled, or replaced, for instance by `signs`."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.randint(0, 12))
        piece = rng.choice(("", text[start:end] * 2, rng.choice(signs), chr(rng.randint(1, 0x2FF))))
        text = text[:start] + piece + text[end:]
    return text


def _reworded(text: str, rng: random.Random, words: Sequence[str]) -> str:
    """Return a text with one or two changed words."""
    for _ in range(rng.randint(1, 2)):
        if found := list(_WORD.finditer(text)):
            one = rng.choice(found)
            text = text[: one.start()] + rng.choice(words) + text[one.end() :]
    return text
