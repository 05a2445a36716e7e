"""Regular expressions with Go's syntax."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from daemon.matching.regexp import (
    MAX_LENGTH,
    PatternsTooCostly,
    limited,
    match_cost,
    pattern_error,
    replace,
    search,
)
from storage.errors import Invalid

TOO_LARGE = r"(\pL{100}|x)" * 9


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("", "", True),
        ("", "x", True),
        ("b", "abc", True),
        ("d", "abc", False),
        ("^b", "abc", False),
        ("^a.c$", "abc", True),
        ("a.c", "a\nc", False),
        ("(?s)a.c", "a\nc", True),
        ("^c$", "ab\nc", False),
        ("(?m)^c$", "ab\nc", True),
        ("a$", "a\n", False),  # `$` does not match before a final newline
        (r"\Aa\z", "a", True),
        ("(?i)ABC", "xabcx", True),
        ("(?i)\u00e4", "\u00c4", True),
        ("a(?i)b(?-i)c", "aBc", True),
        ("a(?i)b(?-i)c", "aBC", False),
        ("(?i:a)b", "Ab", True),
        ("(?i:a)b", "AB", False),
        ("(?i-s:A.)", "a\n", False),
        ("(a|b)+c", "xabbac", True),
        ("a|", "x", True),
        ("^(a|b|)$", "", True),
        ("^a{2}$", "aa", True),
        ("^a{2}$", "aaa", False),
        ("^a{2,}$", "aaaaa", True),
        ("^a{0,2}$", "aaa", False),
        ("^a*?b$", "aaab", True),
        ("a{,2}", "a{,2}", True),  # not a repetition, but literal text
        ("a{x}", "a{x}", True),
        ("^[abc]+$", "cab", True),
        ("^[^abc]+$", "xyz", True),
        ("^[a-c-]+$", "a-c", True),
        ("^[]a]+$", "]a", True),
        (r"^[\]\-a]+$", "]-a", True),
        (r"^\d+$", "0123", True),
        (r"^\d+$", "\u0661", False),  # `\d` matches only ASCII digits
        (r"^\D+$", "abc", True),
        (r"^\w+$", "aZ_9", True),
        (r"^\W$", "\u00e9", True),
        (r"^\s$", "\v", False),
        (r"^[\d\s]+$", "1 2", True),
        ("^[[:alpha:]]+$", "abc", True),
        ("^[[:^alpha:]]+$", "123", True),
        (r"^\pL+$", "a\u00e9\u4e16", True),
        (r"^\p{Lu}$", "\u00c9", True),
        (r"^\P{Lu}$", "\u00e9", True),
        (r"^\p{^Lu}$", "\u00e9", True),
        (r"^\p{Any}$", "\u00e9", True),
        (r"^\p{Greek}$", "\u03b1", True),
        (r"\bab\b", "x ab y", True),
        (r"\bab\b", "xaby", False),
        (r"a\Bb", "ab", True),
        (r"^\x41\x{1F600}\101$", "A\U0001f600A", True),
        (r"^\a\f\n\r\t\v$", "\a\f\n\r\t\v", True),
        (r"^\Qa.b\E$", "a.b", True),
        (r"^\Qa.b", "a.b", True),
        (r"^\Q\C\E$", r"\C", True),
        (r"^\\C$", r"\C", True),
        (r"^\.\*\[\]$", ".*[]", True),
        ("(?P<name>a)(?<other>b)", "ab", True),
        ("(?P<name>a)(?P<name>b)", "ab", True),  # Go permits duplicate names
        ("[(?P<\u00e9>]", "\u00e9", True),
        ("(?:ab)*c", "ababc", True),
        ("(?U)a+", "aaa", True),
        ("^.$", "\0", True),
        ("\ud800", "a\ud800", True),  # half a pair, as it comes from broken input
        ("^.$", "\ud800", True),
    ],
)
def test_patterns_match_anywhere(pattern: str, text: str, *, found: bool) -> None:
    assert search(pattern, text) is found
    assert pattern_error(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(", "missing closing ): `(`"),
        ("a)", "unexpected ): `a)`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a|+", "missing argument to repetition operator: `+`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a+*", "invalid nested repetition operator: `+*`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("a{2,1}", "invalid repeat count: `{2,1}`"),
        ("(a{100}){100}", "invalid repeat count: `{100}`"),
        ("[a", "missing closing ]: `[a`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("[[:nope:]]", "invalid character class range: `[:nope:]`"),
        (r"\pX", r"invalid character class range: `\pX`"),
        (r"\p{Nope}", r"invalid character class range: `\p{Nope}`"),
        (r"\p{L", r"invalid character class range: `\p{L`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
        (r"\y", r"invalid escape sequence: `\y`"),
        ("\\\u00e9", "invalid escape sequence: `\\\u00e9`"),
        (r"\xZZ", r"invalid escape sequence: `\xZZ`"),
        (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
        (r"a\C", r"invalid escape sequence: `\C`"),
        ("\\", "trailing backslash at end of expression: ``"),
        ("(?i", "invalid or unsupported Perl syntax: `(?i`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?z)", "invalid or unsupported Perl syntax: `(?z`"),
        ("(?<=a)b", "invalid named capture: `(?<=a)b`"),
        ("x(?<!a>b)", "invalid named capture: `(?<!a>`"),
        ("(?P<a", "invalid named capture: `(?P<a`"),
        ("(?P<a b>x)", "invalid named capture: `(?P<a b>`"),
        ("(?P<\u00e9>x)", "invalid named capture: `(?P<\u00e9>`"),
        ("(?<\u00e9>x)", "invalid named capture: `(?<\u00e9>`"),
        ("x" * (MAX_LENGTH + 1), f"expression too large: `{'x' * 20}...`"),
        (TOO_LARGE, f"expression too large: `{TOO_LARGE}`"),
    ],
)
def test_invalid_pattern_gets_the_error_text_of_go(pattern: str, text: str) -> None:
    assert pattern_error(pattern) == f"error parsing regexp: {text}"
    with pytest.raises(Invalid):
        search(pattern, "a")


def test_invalid_pattern_is_reported_only_in_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    pattern_error("(")
    pattern_error(TOO_LARGE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*b",
        "(a|aa)+$b",
        "(a+)+!$",
        "(.*)(.*)(.*)(.*)(.*)b",
        "(?:a?){300}a{300}b",
        "(a.{60}){5}b",
    ],
)
def test_no_pattern_blocks_the_daemon(pattern: str) -> None:
    start = time.process_time()
    assert not search(pattern, "a" * 20_000, most=None)
    assert time.process_time() - start < 2


# Elements of patterns with the same meaning in Python and Go.
_ATOMS = some.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "1", "(?:a|b)"])
_TIMES = some.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}"])
_PIECES = some.builds(str.__add__, _ATOMS, _TIMES) | some.sampled_from(["^", r"\b", r"\Z"])
_PATTERNS = some.recursive(
    _PIECES,
    lambda inner: (
        some.lists(inner, max_size=4).map("".join)
        | some.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | inner.map(lambda item: f"(?:{item})*")
    ),
    max_leaves=8,
)


@given(_PATTERNS, some.text("ab1 \n", max_size=8))
def test_patterns_match_like_in_go(pattern: str, text: str) -> None:
    assert search(pattern.replace(r"\Z", r"\z"), text) is bool(re.search(pattern, text, re.ASCII))


@pytest.mark.parametrize(
    ("pattern", "replacement", "text", "result"),
    [
        ("b", "-", "abcb", "a-c-"),
        ("b*", "-", "abc", "-a-c-"),
        ("", ".", "äö", ".ä.ö."),
        ("(a)(b)?", "$2$1", "ab a", "ba a"),
        ("(?P<x>a)", "<${x}>", "a", "<a>"),
        ("a", "$$", "a", "$"),
        ("a", "$0$0", "a", "aa"),
        ("a", "$9${none}", "ab", "b"),
        ("(a)", "$1b", "a", ""),
        ("a", "$", "a", "$"),
    ],
)
def test_matches_are_replaced_like_in_go(
    pattern: str, replacement: str, text: str, result: str
) -> None:
    assert replace(pattern, replacement, text) == result


def test_oversized_replacement_is_aborted_early() -> None:
    def check(length: int) -> None:
        if length > 100:
            raise OverflowError(length)

    with pytest.raises(OverflowError, match="110"):
        replace("a", "x" * 10, "a" * 1000, check)


# --- bounds ---

LONG = "x" * 100_000


def test_possibly_slow_search_is_refused() -> None:
    assert not search("^xy", LONG)
    began = time.thread_time()
    with pytest.raises(Invalid, match=r"`x\[\^y\]\{900\}z` in 100000 characters may take longer"):
        search("x[^y]{900}z", LONG)
    assert time.thread_time() - began < 0.5
    assert not search("x[^y]{900}z", LONG, most=None)  # no limit


def test_patterns_of_a_block_share_a_limit() -> None:
    many = [f"a[^b]c{number}" for number in range(1_000)]
    with limited(3_000), pytest.raises(PatternsTooCostly, match=r"take longer than 0\.003 s: use"):
        [search(item, "abc" * 100) for item in many]
    with limited(3_000), pytest.raises(PatternsTooCostly):  # compiling counts too
        pattern_error("unseen pattern " * 10)


def test_repeated_search_in_a_block_is_counted_once() -> None:
    pattern_error("^y+$")
    with limited(match_cost("^y+$", LONG[:1_000]) + 1):
        assert [search("^y+$", LONG[:1_000]) for _ in range(5)] == [False] * 5


def test_nested_block_has_its_own_limit() -> None:
    pattern_error("^q$")
    with limited(10):
        with limited(100_000):
            search("^q$", LONG[:3_000])
        assert not search("^q$", "x")
