"""Spelling of options: long options with one dash, as in Nomad and Vault, or with two dashes."""

import re

_ONE_LETTER = re.compile(r"--([a-z])(?:=(.*)|(\d+))?", re.DOTALL)


class Word(str):
    """An argument in the spelling of an option, which a command looks up.

    If the argument is a value instead, its text is `str(word)`: the text that the user typed. So a
    command that runs another command passes the options of that command unchanged.
    """

    __slots__ = ("typed",)
    typed: str

    def __str__(self) -> str:
        """Return the typed text."""
        return self.typed


def respelled(spelling: str, typed: str) -> Word:
    """Return an argument in another spelling, which remembers the typed text."""
    word = Word(spelling)
    word.typed = str(typed)
    return word


def normalize_options(arguments: list[str]) -> list[str]:
    """Return the arguments with two dashes before every long option. Nomad's options have one dash.

    Arguments after `--` stay unchanged.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [
        respelled(f"-{word}", word) if _has_one_dash(word) else word for word in arguments[:end]
    ] + (arguments[end:])


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
    return respelled(f"-{letter}{value or number or ''}", word)
