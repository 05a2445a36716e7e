"""Prose is plain English: short sentences, and none of the phrases that made readers stumble.

`PHRASES` holds patterns with the advice for each. `OLD_PAGES` and `OLD_FOLDERS` limit the pages and
folders with remaining phrases. Every other page has no such phrase and no long sentence. The same
holds for the comments and messages of files in other languages (`SOURCES`).
"""

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOST_WORDS = 25  # words in a sentence

PHRASES = {
    r"\bfor who\b": "name the reader: 'for operators', 'if you come from cron'",
    r"(?:^|[.;:] )[Ww]ho (?!may|asks|am)\w+ [^?]*$": "name the actor: 'a client that …'",
    r"\bwhoever\b": "name the actor: 'the caller', 'anyone with this token'",
    r"\bthose who\b": "name the group: 'readers', 'clients', 'users'",
    r"\bwho asks\b": "'the caller', 'the request'",
    r"\bknocks?\b": "'connects', 'requests'",
    r"\bempty text\b(?! field)": "'an empty string'",
    r"\b(?:lists?|map|object) of texts\b": "'strings'",
    r"\btried again\b": "'retried'",
    r"\bin turns\b": "'in turn', 'alternately'",
    r"\breasons? of (?:an?|the|its) (?:failure|rejection|refusal|cancellation)\b": "'reason for'",
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
# Clauses that stand for a noun, at the beginning of a comment or message of other languages.
NOUN_CLAUSES = {
    r"(?i)^(?:what|who|whose|which|how|where|whether|that)\b[^?]*$": "begin with a noun",
    r"(?i)^(?:of|by|in|to|from|with) (?:what|which|who|whom)\b": "begin with a noun",
    r"\bfor (?:there|it) (?:is|are|was)\b": "'because'",
    r"\bbesides\b": "'in addition to', 'also'",
    r"\bas (?:it|they) (?:is|are|was|were) told\b": "name the configuration",
    r"\bdo(?:es)? what (?:it|they) must\b": "name the failed check",
}
SHARP = [(re.compile(pattern), advice) for pattern, advice in PHRASES.items()]
SHARPER = [(re.compile(pattern), advice) for pattern, advice in PRODUCT_PHRASES.items()]
SHARPEST = [*SHARPER, *((re.compile(item), advice) for item, advice in NOUN_CLAUSES.items())]
ANY = re.compile("|".join(PHRASES))  # a single search for most sentences, which match no phrase

COMMENT = re.compile(r"(?:^|\s)# (?!noqa|type:)(.*)$")

# Sentences that are right although they match, each with its reason.
EXCEPTIONS: dict[str, str] = {}

# Pages that are not rewritten yet, with their maximum numbers of phrases and of long sentences. The
# numbers may only fall.
OLD_PAGES: dict[str, tuple[int, int]] = {}
# Folders of modules, with their maximum number of phrases in docstrings and comments. The numbers
# may only fall.
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
LOOSE = {"daemon"}  # of these folders, only the modules at the root count
SLACK = 10  # a bound that exceeds the count by more must be lowered

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (
        *ROOT.glob("*.md"),
        *DOCS.glob("*.md"),
        *DOCS.glob("[!n]*/*.md"),
        ROOT / "bench/README.md",
    )
)

# Forms of comments, by the type of a file. Each has one group of a whole line, or of a block.
_HASH = re.compile(r"^(?P<before>.*?)(?:^|(?<=\s))#(?P<line>(?: .*)?)$")
_DASHES = re.compile(r"^(?P<before>.*?)(?:^|(?<=\s))--(?P<line>(?: .*)?)$")
_SLASHES = re.compile(r"^(?P<before>.*?)(?:^|(?<=\s))//(?P<line>(?: .*)?)$")
LINES = {
    "": _HASH,  # scripts with an interpreter line, and control files
    ".sh": _HASH,
    ".hcl": _HASH,
    ".toml": _HASH,
    ".yml": _HASH,
    ".service": _HASH,
    ".socket": _HASH,
    ".sql": _DASHES,
    ".c": _SLASHES,
    ".go": _SLASHES,
    ".js": _SLASHES,
}
BLOCKS = {
    ".c": re.compile(r"/\*(.*?)\*/", re.DOTALL),
    ".css": re.compile(r"/\*(.*?)\*/", re.DOTALL),
    ".html": re.compile(r"\{#(.*?)#\}|<!--(.*?)-->", re.DOTALL),
}
# Messages and descriptions in files of these types.
_SHELL_MESSAGES = re.compile(r"\b(?:say|detail|complain|fail) (?:\S+ )?\"((?:[^\"\\]|\\.)*)\"")
MESSAGES = {
    "": _SHELL_MESSAGES,
    ".sh": _SHELL_MESSAGES,
    ".c": re.compile(r"\bfail\(\"((?:[^\"\\]|\\.)*)\""),
    ".hcl": re.compile(r"\b(?:description|error_message) += \"(.*)\"$", re.MULTILINE),
    ".toml": re.compile(r"^description = \"(.*)\"$", re.MULTILINE),
    ".yml": re.compile(r"^[ -]*(?:summary|action|description|label|name): (.*)$", re.MULTILINE),
    ".service": re.compile(r"^Description=(.*)$", re.MULTILINE),
    ".socket": re.compile(r"^Description=(.*)$", re.MULTILINE),
}
# Files from other projects, recorded answers, and job files with intended mistakes.
NOT_OURS = (
    "daemon/ui/static/xterm",
    "packaging/deb/copyright",
    "tests/browser/fetched/",
    "tests/parts/storage/forms/",
    "tests/service/cli/mistakes/",
    "tests/service/recorded/",
    "tests/wire/",
)


def _is_source(path: Path) -> bool:
    name = str(path.relative_to(ROOT))
    if name.startswith(NOT_OURS) or not path.is_file():
        return False
    if path.suffix:
        return path.suffix in {*LINES, *BLOCKS}
    return name.startswith("packaging/") or path.read_bytes().startswith(b"#!")


SOURCES = sorted(
    str(path.relative_to(ROOT))
    for folder in (".ci", ".github", "bench", "daemon", "packaging", "storage", "tests", "")
    for path in (ROOT / folder).glob("**/*" if folder else "*")
    if _is_source(path)
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


@cache
def sentences(text: str) -> tuple[str, ...]:
    """Split at the ends of sentences; an abbreviation such as `e.g.` does not end one.

    Several tests read each text.
    """
    return tuple(re.split(r"(?<=[.!?])[\")]*\s+(?=[A-Z\"(])", plain(text).strip()))


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
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line = node.body[0].lineno if node.body else 1
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                yield line, " ".join(paragraph.split())
    for number, line in enumerate(source.splitlines(), start=1):
        if match := COMMENT.search(line):
            yield number, match[1]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and its statements, without their expressions, which have no docstrings."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


@cache
def prose_of_file(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the docstrings and comments of a module, which two tests read."""
    return tuple(prose_of_module(path.read_text()))


def prose_of_source(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and messages of a file that is neither Python nor Markdown."""
    kind = Path(name).suffix
    if kind in BLOCKS:
        for match in BLOCKS[kind].finditer(source):
            text = re.sub(r"^ *\* ?", "", match[match.lastindex or 1], flags=re.MULTILINE)
            line = source.count("\n", 0, match.start()) + 1
            yield from ((line, paragraph) for paragraph in _paragraphs(_dedented(text)))
    if kind in LINES:
        yield from _line_comments(source, LINES[kind])
    if kind in MESSAGES:
        for match in MESSAGES[kind].finditer(source):
            yield source.count("\n", 0, match.start()) + 1, match[1]


def _line_comments(source: str, form: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of comments on whole lines, and each comment after code."""
    start, lines = 1, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        match = form.search(line)
        is_whole = match is not None and not match["before"].strip()
        if not is_whole:
            yield from ((start, paragraph) for paragraph in _paragraphs(lines))
            start, lines = number + 1, []
        if match is not None and not re.match(r" (?:shellcheck|noqa)\b", match["line"]):
            if is_whole:
                lines.append(match["line"].removeprefix(" "))
            else:
                yield number, match["line"].strip()


def _dedented(text: str) -> list[str]:
    first, *rest = text.strip().splitlines() or [""]
    return [first, *textwrap.dedent("\n".join(rest)).splitlines()]


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Divide comment lines at empty lines, and at lines of a list or of a synopsis."""
    paragraph, indent = "", 0
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if paragraph and line.strip() and (depth == indent == 0 or depth > indent > 0):
            paragraph += " " + line.strip()
        else:
            yield paragraph
            paragraph, indent = line.strip(), depth
    yield paragraph


def module_phrases(folder: str) -> list[Found]:
    return [
        phrase
        for path in sorted((ROOT / folder).glob("*.py" if folder in LOOSE else "**/*.py"))
        for phrase in phrases(str(path.relative_to(ROOT)), prose_of_file(path))
    ]


def shown(found: list[Found]) -> str:
    return "\n".join(found[:20])


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_awkward_phrases(page: str) -> None:
    found = phrases(page, prose_of_page((ROOT / page).read_text()))
    assert len(found) <= OLD_PAGES.get(page, (0, 0))[0], shown(found)


def product_phrases(
    where: str,
    texts: Iterable[tuple[int, str]],
    patterns: list[tuple[re.Pattern[str], str]] = SHARPER,
) -> list[Found]:
    return [
        Found(f"{where}:{number}: {sentence!r} has {match[0]!r}: {advice}")
        for number, text in texts
        for sentence in sentences(text)
        if sentence not in EXCEPTIONS
        for pattern, advice in patterns
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
def test_modules_get_no_new_awkward_phrases(folder: str) -> None:
    found = module_phrases(folder)
    assert len(found) <= OLD_FOLDERS[folder], shown(found)


def test_limits_decrease_with_the_counts() -> None:
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


@cache
def prose_of_sources() -> tuple[tuple[str, tuple[tuple[int, str], ...]], ...]:
    """Return the comments and messages of all files, which three tests read."""
    return tuple(
        (name, tuple(prose_of_source(name, (ROOT / name).read_text()))) for name in SOURCES
    )


def test_sources_have_no_stumbling_phrases() -> None:
    found = [item for name, texts in prose_of_sources() for item in phrases(name, texts)]
    assert found == [], shown(found)


def test_sources_have_no_noun_clauses() -> None:
    found = [
        item
        for name, texts in prose_of_sources()
        for item in product_phrases(name, texts, SHARPEST)
    ]
    assert found == [], shown(found)


def test_sources_have_no_long_sentences() -> None:
    found = [item for name, texts in prose_of_sources() for item in long_sentences(name, texts)]
    assert found == [], shown(found)


# `~` is a `#`, so that this file has no such comments.
SAMPLES = {
    "packaging/x.sh": '~ the peer\nrun() { ~ goes on\nfail 1 "it is none: made-up"\n',
    "packaging/x": "~ anew\n~\n~   --all   Lists of theirs.\necho '~x' ~ at work\n",
    "x.sql": "-- the peer\nCREATE TABLE t (\n    a TEXT,  -- at work\n    b TEXT   -- made-up\n);\n",
    "x.c": '/* the\n * peer */\nint i; // at work\nfail("made-up: %s", s);\n',
    "x.go": '// the peer\nvar a = "http://b" // at work\n// made-up\n',
    "x.js": "// the peer\nconst a = 1; // at work\n// made-up\n",
    "x.css": "/* the peer */\na { color: #123; } /* at work */\n/* made-up */",
    "x.html": "{# the peer #}<p>{# at work #}</p><!-- made-up -->",
    "x.hcl": '~ the peer\na = 1 ~ at work\ndescription = "made-up"\n',
    "x.toml": '~ the peer\na = 1 ~ at work\ndescription = "made-up"\n',
    "x.yml": "~ the peer\na: 1 ~ at work\n- name: made-up\n",
    "x.service": "~ the peer\n~ \n~ at work\nDescription=made-up\n",
    "x.socket": "~ the peer\n\n~ at work\nDescription=made-up\n",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_comments_and_messages_of_each_type_are_found(name: str) -> None:
    source = SAMPLES[name].replace("~", "#")
    assert len(phrases(name, prose_of_source(name, source))) == 3
    kind = Path(name).suffix
    assert kind in {Path(source).suffix for source in SOURCES}


def test_every_type_of_source_has_a_sample() -> None:
    assert {Path(name).suffix for name in SAMPLES} == {*LINES, *BLOCKS}


@pytest.mark.parametrize(
    "comment",
    [
        "What CI runs: all checks",
        "what it is called",
        "Who has claimed it",
        "Which jobs start after which others",
        "How much of its output is kept",
        "that are shown of the output",
        "of which an attempt is an element",
        "Skipped, for there is no dpkg-deb",
        "It needs curl, besides sh",
    ],
)
def test_noun_clauses_are_found(comment: str) -> None:
    texts = prose_of_source("x.sh", f"true # {comment}\n")
    assert product_phrases("x.sh", texts, SHARPEST)


def test_long_comments_are_found_across_lines() -> None:
    source = f"# {'word ' * 13}\n# {'word ' * 13}\n#\n# {'word ' * 25}\n"
    assert len(long_sentences("x.sh", prose_of_source("x.sh", source))) == 1


def test_items_of_a_usage_comment_are_separate_sentences() -> None:
    source = f"# Options:\n#   --one   {'word ' * 20}\n#           go\n#   --two   Two words.\n"
    assert [words(text) for _, text in prose_of_source("x.sh", source) if text] == [1, 22, 3]
