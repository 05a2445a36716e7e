"""Texts that are almost job files: made from a seed, for tests that any text has an answer."""

import random
from collections.abc import Iterator, Sequence

_SIGNS = (
    *('job "x" {', 'group "g" {', 'task "t" {', "config {", "}", "{", "}\n", "\n", "(", ")", "["),
    *("]", "=", "==", "=>", ":", ",", ".", "...", "?", "!", "-", "+", "*", "/", "%", "&&", "||"),
    *("${", "%{", "~}", "~", '"', "<<EOT\n", "<<-EOT\n", "EOT\n", "[*]", ".*", "for", "in", "if"),
    *("else", "endif", "endfor", "null", "true", "local", "var", "a", "b.c", "0", "1.5", "1e9"),
    *('"text"', '"a${', "dynamic", "variable", "locals {", "#", "//", "/*", "*/", "\\", "\\u00e9"),
    *("upper(", "range(", "length(", "format(", "try(", "merge(", "x = ", "type", "default"),
    *(
        "é",
        "\u0301",
        "👨\u200d👩",
        "\r\n",
        "\t",
        "\ufeff",
        "\x00",
        "\ud800",
        "\u2028",
        "::",
        "@",
        "'",
    ),
)


def texts(seed: int, count: int, corpus: Sequence[str]) -> Iterator[str]:
    """Yield texts: signs of the language in any order, and files of the corpus with changes."""
    chance = random.Random(seed)
    for _ in range(count):
        if chance.random() < 0.4:
            yield "".join(chance.choices(_SIGNS, k=chance.randint(1, 40)))
        else:
            yield _changed(chance.choice(corpus), chance)


def _changed(text: str, chance: random.Random) -> str:
    """Return a text with some pieces taken out, put in, doubled or moved."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.randint(0, 12))
        piece = chance.choice(
            ("", text[start:end] * 2, chance.choice(_SIGNS), chr(chance.randint(1, 0x2FF)))
        )
        text = text[:start] + piece + text[end:]
    return text
