"""How options are written: long ones with one dash or two, as the peers have it. Pure."""

import re

_ONE_LETTER = re.compile(r"--([a-z])(?:=(.*)|(\d+))?", re.DOTALL)


def two_dashes(arguments: list[str]) -> list[str]:
    """Return arguments with long options spelled with two dashes: the peer's have one.

    What stands behind `--` is not ours to touch.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [f"-{word}" if _has_one_dash(word) else word for word in arguments[:end]] + arguments[
        end:
    ]


def _has_one_dash(word: str) -> bool:
    return len(word) > 2 and word[0] == "-" and word[1].isalpha()


def short_option(word: str) -> str:
    """Return an option of one letter with its one dash: all others have two by now.

    >>> short_option("--n=5")
    '-n5'
    """
    match = _ONE_LETTER.fullmatch(word)
    if match is None:
        return word
    letter, value, number = match.groups()
    return f"-{letter}{value or number or ''}"
