"""Spelling of options: long options with one dash, as in Nomad and Vault, or with two dashes."""

import re

_ONE_LETTER = re.compile(r"--([a-z])(?:=(.*)|(\d+))?", re.DOTALL)


def normalize_options(arguments: list[str]) -> list[str]:
    """Return the arguments with two dashes before every long option. Nomad's options have one dash.

    Arguments after `--` stay unchanged.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [f"-{word}" if _has_one_dash(word) else word for word in arguments[:end]] + arguments[
        end:
    ]


def _has_one_dash(word: str) -> bool:
    return len(word) > 2 and word[0] == "-" and word[1].isalpha()


def short_option(word: str) -> str:
    """Return a one-letter option with one dash. All other options already have two dashes.

    >>> short_option("--n=5")
    '-n5'
    """
    match = _ONE_LETTER.fullmatch(word)
    if match is None:
        return word
    letter, value, number = match.groups()
    return f"-{letter}{value or number or ''}"
