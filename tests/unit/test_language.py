"""Prose is plain English: short sentences, and none of the phrases that made readers stumble.

`PHRASES` holds patterns with the advice for each. `OLD_PAGES` and `OLD_FOLDERS` bound what has not
been rewritten yet. Every other page has no such phrase and no long sentence.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOST_WORDS = 25  # of a sentence

PHRASES = {
    r"\bfor who\b": "name the reader: 'for operators', 'if you come from cron'",
    r"(?:^|[.;:] )[Ww]ho (?!may|asks|am)\w+ [^?]*$": "name the actor: 'a client that …'",
    r"\bwhoever\b": "name the actor: 'the caller', 'anyone with this token'",
    r"\bthose who\b": "name the group: 'readers', 'clients', 'users'",
    r"\bwho asks\b": "'the caller', 'the request'",
    r"\bknocks?\b": "'connects', 'requests'",
    r"\bsomebody\b": "name the party: 'another user', 'an operator'",
    r"\beverybody\b": "'all users', 'every client'",
    r"\b[Ww]hat (?:stands|lies|hangs)\b": "'what works', 'the contents'",
    r"\b[Ww]hat (?:became|becomes|is to become) of\b": "'the result', 'the outcome'",
    r"\bwhat (?:comes|came) of (?:it|this|that|them)\b": "'the result'",
    r"\bwhat (?:is|was|are|were) left of\b": "'the rest of'",
    r"\bwhat it is for\b": "'the purpose'",
    r"\bthat (?:is|are|was|were) none\b": "'there is no …'",
    r"\b(?:is|are|was|were|be|been|being) told\b": "'receives', 'is notified', 'the error names'",
    r"\bhears? of\b": "'is notified of'",
    r"\b(?:wait\w* for|lacks?|finds?|is|no) room\b": "'capacity', 'disk space'",
    r"\bmak(?:e|es|ing) room\b": "'preempt', 'free disk space'",
    r"\b(?:finds?|found|find) (?:no|a|its) place\b": "'is placed', 'cannot be placed'",
    r"\bin the place of\b": "'instead of'",
    r"\btakes? the place of\b": "'replaces'",
    r"\bbeside\b": "'next to', 'in addition to', 'apart from'",
    r"\bput aside\b": "'archived', 'moved to'",
    r"\blets? go of\b": "'releases'",
    r"\b(?:goes|go|went) on\b": "'continues', 'keeps running'",
    r"\b(?:come|comes|came) to (?:rest|its end|their end)\b": "'settle', 'end'",
    r"\bstill to come\b": "'upcoming'",
    r"\bcomes? (?:up )?well\b": "'is healthy'",
    r"\bforgets\b": "'deletes', 'removes'",
    r"\bheld to (?:their|its|his)\b": "'limits are enforced'",
    r"\bmay nothing\b": "'has no permissions'",
    r"\bnew work\b": "'new allocations'",
    r"\bpassed over\b": "'skipped', 'ignored'",
    r"\bturned away\b": "'rejected'",
    r"\bleads? (?:elsewhere|there|anywhere|nowhere|somewhere)\b": "'points to', 'resolves to'",
    r"\bhand(?:s|ed|ing) (?:in|over)\b": "'submit', 'pass'",
    r"\bgiv(?:en?|es) out\b": "'issue', 'assign'",
    r"\banew\b": "'again', 're-'",
    r"\bonce more\b": "'again'",
    r"\bat the middle\b": "'median'",
    r"\bat the (?:twentieth|hundredth)\b": "'p95', 'p99'",
    r"\bprocessors? time\b": "'CPU time'",
    r"\bat work\b": "'running', 'in progress'",
    r"\bfor so long\b": "'for this time'",
    r"\bso (?:long|many|much) at most\b": "give the limit",
    r"\bhowever (?:long|much|many)\b": "'no matter how …'",
    r"\blately\b": "'recently'",
    r"\bnever again\b": "'permanently'",
    r"\bjobs? with a clock\b": "'periodic job'",
    r"\bof (?:its|their|his|one's|our|your) own\b": "'its own …' before the noun",
    r"\bof ours\b|\bthat (?:is|are) (?:not )?ours\b|\bof theirs\b": "'Steward's', 'third-party'",
    r"\bthe peers?\b|\bpeers'": "'Nomad', 'Vault'",
    r"\b(?:secrets|jobs) side\b": "'Vault API', 'jobs API'",
    r"\bwalls?\b(?! clock)": "'sandbox', 'isolation'",
    r"\bmend(?:s|ed|ing)?\b": "'fix'",
    r"\bfresh eyes\b": "'an independent review'",
    r"\bmade[- ]up\b": "'fake'",
    r"\bbrings? along\b": "'provides', 'needs'",
    r"\bon one screen\b": "'in one table'",
    r"\bis kept nowhere\b": "'is not stored'",
    r"\bshort of its target\b": "'misses its target'",
    r"\bstrangers?\b": "'unknown clients'",
    r"\bthe other way round\b": "'the reverse'",
    r"\bwhere one looks\b": "name the place",
}
# Phrases that tests still have in their docstrings. No page and no other module has them.
PRODUCT_PHRASES = {
    r"\bsa(?:ys?|id) so\b": "'reports it', or name the fact",
    r"\bmeanwhile\b": "'in the meantime'",
    r"\bat once\b": "'immediately' or 'at the same time'",
    r"\bbounds\b": "'limits'",
    r"^(?:What|Who) \w+[^?]*$": "begin with a noun",
    r"\blook(?:s|ed|ing)? at (?:it )?again\b": "'re-evaluate', 'check again'",
    r", too(?=[.,;)]|$)": "'also' before the verb",
    r"\bas well(?! as)(?=[.,;)]|$)": "'also' before the verb",
    r"\b(?:another|the other|no other) one\b": "repeat the noun",
    r"\b(?:he|him|his)\b": "'it' for a program, 'they' for a person",
    r"\bnobody\b": "'no user', 'no process'",
    r"\bwh(?:at|er)ever\b": "'any', 'no matter'",
    r"\ball that (?:is|was|it|they)\b": "'every …', 'all …'",
    r"\bby (?:itself|themselves)\b": "'automatically'",
    r"\bstands? (?:in|at|behind|there)\b": "'is in', 'is at'",
    r"\b(?:its|their) turns?\b": "'is queued'",
    r"\bhanded\b": "'passed', 'submitted'",
    r"\blets? in\b": "'accepts'",
    r"\bfor (?:ever|good)\b": "'permanently'",
}
SHARP = [(re.compile(pattern), advice) for pattern, advice in PHRASES.items()]
SHARPER = [(re.compile(pattern), advice) for pattern, advice in PRODUCT_PHRASES.items()]
ANY = re.compile("|".join(PHRASES))  # one search for the many sentences that have none

COMMENT = re.compile(r"(?:^|\s)# (?!noqa|type:)(.*)$")

# Sentences that are right although they match, each with its reason.
EXCEPTIONS: dict[str, str] = {}

# Pages that are not rewritten yet: at most so many phrases and long sentences. Numbers only fall.
OLD_PAGES: dict[str, tuple[int, int]] = {}
# Folders of modules: at most so many phrases in docstrings and comments. Numbers only fall.
OLD_FOLDERS = {
    "daemon": 0,
    "daemon/acl": 0,
    "daemon/admin": 0,
    "daemon/api": 0,
    "daemon/app": 0,
    "daemon/cli": 0,
    "daemon/config": 0,
    "daemon/confinement": 0,
    "daemon/evals": 0,
    "daemon/flow": 0,
    "daemon/identity": 0,
    "daemon/jobs": 0,
    "daemon/jobspec": 0,
    "daemon/launcher": 0,
    "daemon/log": 0,
    "daemon/matching": 0,
    "daemon/net": 0,
    "daemon/notify": 0,
    "daemon/otlp": 0,
    "daemon/process": 0,
    "daemon/runner": 0,
    "daemon/scheduler": 0,
    "daemon/templates": 0,
    "daemon/text": 0,
    "daemon/ui": 0,
    "daemon/variables": 0,
    "daemon/web": 0,
    "storage": 0,
    "tests": 3,
    "bench": 0,
    "packaging": 0,
}
LOOSE = {"daemon"}  # folders of which only the modules at the root count
SLACK = 10  # by which a bound may be higher than the count before it must be lowered

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (
        *ROOT.glob("*.md"),
        *DOCS.glob("*.md"),
        *DOCS.glob("[!n]*/*.md"),
        ROOT / "bench/README.md",
    )
)


class Found(str):
    """A place with a phrase or a long sentence, as the failure shows it."""


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and cells of a page, each with its line number."""
    text = re.sub(r"^(```|~~~).*?^\1\s*$", _blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL)
    start, lines = 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        is_row = line.startswith("|")
        begins = is_row or not line.strip() or re.match(r"\s*(?:[-*#>]|\d+\.) ", line) is not None
        if begins or line.startswith(("    ", "#")):
            yield start, " ".join(lines)
            start, lines = number, []
        if is_row:
            # A cell is often a list: its parts count as sentences.
            yield from ((number, part) for cell in line.split("|") for part in cell.split("; "))
        elif not line.startswith("    "):
            lines.append(line.strip())
    yield start, " ".join(lines)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def plain(text: str) -> str:
    """Return text without markup; code, or a list of code, counts as one word."""
    text = re.sub(r"``.*?``|`[^`]*`", "CODE", text)
    text = re.sub(r"CODE(?:(?:,|;| and| or|, and|, or)? CODE)+", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*(?:[-*#>]+|\d+\.) ", "", text)
    return re.sub(r"[*_]{1,2}", "", text)


def sentences(text: str) -> list[str]:
    """Split at the ends of sentences; an abbreviation such as `e.g.` is none."""
    return re.split(r"(?<=[.!?])[\")]*\s+(?=[A-Z\"(])", plain(text).strip())


def words(sentence: str) -> int:
    return len(re.findall(r"[^\s]*\w[^\s]*", sentence))


def phrases(where: str, texts: Iterable[tuple[int, str]]) -> list[Found]:
    return [
        Found(f"{where}:{number}: {sentence!r} has {match[0]!r}: {advice}")
        for number, text in texts
        for sentence in sentences(text)
        if ANY.search(sentence) and sentence not in EXCEPTIONS
        for pattern, advice in SHARP
        if (match := pattern.search(sentence))
    ]


def long_sentences(where: str, texts: Iterable[tuple[int, str]]) -> list[Found]:
    return [
        Found(f"{where}:{number}: {count} words: {sentence!r}")
        for number, text in texts
        for sentence in sentences(text)
        if (count := words(sentence)) > MOST_WORDS
    ]


def prose_of_module(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module, each with its line number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line = node.body[0].lineno if node.body else 1
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                yield line, " ".join(paragraph.split())
    for number, line in enumerate(source.splitlines(), start=1):
        if match := COMMENT.search(line):
            yield number, match[1]


@cache
def prose_of_file(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the docstrings and comments of a module, which two tests read."""
    return tuple(prose_of_module(path.read_text()))


def module_phrases(folder: str) -> list[Found]:
    return [
        phrase
        for path in sorted((ROOT / folder).glob("*.py" if folder in LOOSE else "**/*.py"))
        for phrase in phrases(str(path.relative_to(ROOT)), prose_of_file(path))
    ]


def shown(found: list[Found]) -> str:
    return "\n".join(found[:20])


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_stumbling_phrases(page: str) -> None:
    found = phrases(page, prose_of_page((ROOT / page).read_text()))
    assert len(found) <= OLD_PAGES.get(page, (0, 0))[0], shown(found)


def product_phrases(where: str, texts: Iterable[tuple[int, str]]) -> list[Found]:
    return [
        Found(f"{where}:{number}: {sentence!r} has {match[0]!r}: {advice}")
        for number, text in texts
        for sentence in sentences(text)
        if sentence not in EXCEPTIONS
        for pattern, advice in SHARPER
        if (match := pattern.search(sentence))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_product_phrases(page: str) -> None:
    found = product_phrases(page, prose_of_page((ROOT / page).read_text()))
    assert found == [], shown(found)


@pytest.mark.parametrize("folder", ["daemon", "storage", "bench", "packaging"])
def test_modules_have_no_product_phrases(folder: str) -> None:
    found = [
        item
        for path in sorted((ROOT / folder).glob("**/*.py"))
        for item in product_phrases(str(path.relative_to(ROOT)), prose_of_file(path))
    ]
    assert found == [], shown(found)


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_long_sentences(page: str) -> None:
    found = long_sentences(page, prose_of_page((ROOT / page).read_text()))
    assert len(found) <= OLD_PAGES.get(page, (0, 0))[1], shown(found)


@pytest.mark.parametrize("folder", OLD_FOLDERS)
def test_modules_get_no_new_stumbling_phrases(folder: str) -> None:
    found = module_phrases(folder)
    assert len(found) <= OLD_FOLDERS[folder], shown(found)


def test_limits_fall_with_the_counts() -> None:
    loose = [
        page
        for page, (most, most_long) in OLD_PAGES.items()
        for text in [(ROOT / page).read_text()]
        if most > len(phrases(page, prose_of_page(text))) + SLACK
        or most_long > len(long_sentences(page, prose_of_page(text))) + SLACK
    ]
    assert loose == [], "lower these bounds"


def test_sentences_are_counted() -> None:
    page = "# A b\n\nOne two `a b`. Three [four](x.md)\nfive!\n\n- six\n- seven\n\n|a|b c|\n\n```\nx\n```\n"
    found = [
        sentence for _, text in prose_of_page(page) for sentence in sentences(text) if sentence
    ]
    assert found == ["A b", "One two CODE.", "Three four five!", "six", "seven", "a", "b c"]
    assert [words(item) for item in found] == [2, 3, 3, 1, 1, 1, 2]


def test_phrases_are_found_in_docstrings_and_comments() -> None:
    source = '"""Begin anew."""\n\n\ndef f():\n    """Return it."""\n    # the peer does so\n'
    assert len(phrases("m.py", prose_of_module(source))) == 2
