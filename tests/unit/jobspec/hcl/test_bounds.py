"""No file blocks the daemon or fills its memory: each of these quickly gives an error."""

import subprocess
import sys
import textwrap
import time
import unicodedata
from contextlib import suppress
from itertools import pairwise

import pytest
import trio

from daemon.jobspec.hcl.source import HclError
from tests.heap import keep_present_objects
from tests.step_timing import check_steps, longest_wait
from tests.unit.jobspec.hcl.build import job, parse, refused, value

MIB = 2**20
SOON = 1.0  # second of CPU; each needs a fraction of it
ROOM = 100 * MIB


def nested_for(depth: int, over: str) -> str:
    return f"[for x in {over} : " * depth + "1" + "]" * depth


def doubling(first: str, again: str, times: int) -> str:
    steps = "".join(f"  a{n + 1} = {again.replace('@', f'local.a{n}')}\n" for n in range(times))
    return f"locals {{\n  a0 = {first}\n{steps}}}\n" + job(f"r = local.a{times}")


def again(expression: str) -> str:
    """Return a job that reads a large value a thousand times and stores nothing."""
    large = f'locals {{\n  text = "{"é" * 20_000}"\n  plain = "{"ab " * 7_000}"\n'
    large += f"  digits = {'9' * 1_000}\n  small = 7e-1000\n}}\n"
    return job(f"r = length([for x in range(1000) : length([{expression}])])", before=large)


DYNAMIC = 'dynamic "{}" {{\n for_each = range(1000)\n labels = ["a"]\n content {{\n{}\n}}\n}}\n'
TOO_MUCH = {
    "a file of brackets": "x = " + "[" * MIB,
    "a file of braces": "{" * MIB,
    "a file of blocks": "a {\n" * (MIB // 4),
    "a file of holes": 'x = "' + "${" * (MIB // 2),
    "a file of parentheses in JSON": '{"job":' + "[" * MIB,
    "a long flat list": job("r = [" + "[]," * (MIB // 3) + "]"),
    "signs before an operand": job("r = " + "!" * MIB + "true"),
    "a chain of conditionals": job("r = " + "true?1:" * (MIB // 7) + "1"),
    "directives in directives": job('r = "' + "%{if true}" * (MIB // 10) + '"'),
    "splats of splats": job("r = local.a" + "[*]" * (MIB // 3)),
    "comments that never end": "/*" * (MIB // 2) + "\n@",
    "an error on each line": 'job "x" {\n' + "@\n" * (MIB // 2) + "}",
    "a far too large range": job("r = range(0,1e9)"),
    "a hundred loops in loops": job("r = " + nested_for(100, "range(2)")),
    "a thousand times a thousand times a thousand": job("r = " + nested_for(3, "range(1000)")),
    "lists of the same lists": doubling('["x", "x"]', "[@, @, @, @, @, @, @, @]", 20),
    "text of the same text": doubling('"xxxxxxxx"', '"${@}${@}"', 60),
    "collections in collections": doubling("[]", "[@]", 3000),
    "a long text in loops": job(
        'r = length([for x in range(1000) : length(["%{for y in range(100)}'
        f'{"a" * 20_000}%{{endfor}}"])])'
    ),
    "replacing by much": job(f'r = replace("{"a" * 3000}", "a", "{"b" * 3000}")'),
    "a wide field": job('r = format("%999999999d", 1)'),
    "a deep indentation": job('r = indent(1e9, "a\\nb")'),
    "all combinations": job("r = setproduct(range(1000), range(1000), range(1000))"),
    "a number with many digits": job("r = 1e999999999"),
    "an expression that explodes": job(f'r = regex_replace("{"a" * 9000}!", "(a+)+$", "") + 1'),
    "an expression that grows": job('r = regex_replace("a", "((a{1,99}){1,99}){1,99}", "")'),
    "a long line with errors": job(f'r = abs("{"é" * 3 * MIB}")'),
    "a list of three million parts": job(f'r = split("a", "{"a" * 3 * MIB}")'),
    "a million fields": job(r'r = csvdecode("a,b\n' + r"1,2\n" * (MIB // 2) + '")'),
    "a date of a million years": job(
        f'r = formatdate("{"YYYY " * (MIB // 2)}", "2000-01-01T00:00:00Z")'
    ),
    "a hash that takes hours": job('r = bcrypt("x", 31)'),
    "many costly hashes": job('r = [for x in range(1000) : bcrypt("x", 10)]'),
    "counting many letters again and again": again("strlen(local.text)"),
    "turning many letters again and again": again("strrev(local.text)"),
    "cutting many letters again and again": again("substr(local.text, 0, 1)"),
    "matching many letters again and again": again('regex_replace(local.plain, "[ab]", "")'),
    "an expression with many states": job(
        f'r = regex_replace("{"a" * 100_000}", "((a{{0,30}}){{0,30}})b", "")'
    ),
    "large letters again and again": again("title(local.plain)"),
    "quoting again and again": again('format("%q", local.text)'),
    "long products again and again": again("[for y in range(99) : local.digits * local.small]"),
    "reading digits again and again": again(f'[for y in range(99) : parseint("{"9" * 1000}", 10)]'),
    "a million blocks": 'job "x" {\n' + DYNAMIC.format("group", DYNAMIC.format("task", "")) + "}\n",
    "an odd character and nothing else": "\x01" * 4 * MIB,
    "a text beyond the longest": "#" * (4 * MIB + 1),
    "a million values in JSON": '{"job":[' + "1," * MIB + "1]}",
    "a million interpolated strings in JSON": '{"job":[' + '"${a}",' * (MIB // 8) + "1]}",
    "deep JSON in a text": job('r = jsondecode("' + "[" * (MIB // 2) + '")'),
    "deep YAML in a text": job('r = yamldecode("' + "[" * 100_000 + '")'),
    "aliases of aliases": job(
        'r = yamldecode("a: &a [x,x,x,x]\\n'
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\\n" for a, b in pairwise("abcdefghi"))
        + '")'
    ),
}


MUCH = {
    "dollars in quotes": job('r = "' + "$" * MIB + '${"'),
    "a long comment": f"/*{'*' * MIB}*/" + job("r = 1"),
    "one long word": job(f"r = {'a' * MIB}"),
    "many operators": job("r = 1" + "+1" * 40_000),
    "many steps": job("r = a" + ".b" * 40_000),
    "many locals": "locals {\n"
    + "".join(f"a{n} = 1\n" for n in range(9000))
    + "}\n"
    + job("r = 1"),
    "a chain of locals": doubling("1", "@", 5000),
}


@pytest.fixture
def own_heap() -> None:
    """Exclude the objects of earlier tests from garbage collection, as in a parser's process."""
    keep_present_objects()


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_oversized_input_is_refused_early(text: str, own_heap: None) -> None:
    started = time.process_time()
    assert refused(text)
    assert time.process_time() - started < SOON


@pytest.mark.parametrize("text", MUCH.values(), ids=MUCH)
def test_large_input_is_parsed_quickly(text: str, own_heap: None) -> None:
    started = time.process_time()
    parse(text)
    assert time.process_time() - started < SOON


MEASURE = """
    import resource, sys
    from tests.unit.jobspec.hcl import test_bounds
    from tests.unit.jobspec.hcl.build import refused
    text = test_bounds.TOO_MUCH[sys.argv[1]]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(text)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
HUNGRIEST = (
    *("a long flat list", "lists of the same lists", "text of the same text", "a million blocks"),
    *("a thousand times a thousand times a thousand", "aliases of aliases", "a file of blocks"),
)


@pytest.mark.parametrize("name", HUNGRIEST)
def test_oversized_input_needs_little_memory(name: str) -> None:
    measured = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), name],
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert int(measured.stdout) < ROOM


def test_deeply_nested_file_is_parsed_on_a_deep_stack() -> None:
    def deeper(levels: int) -> str:
        return deeper(levels - 1) if levels else refused(job("r = " + "[" * 90 + "@" + "]" * 90))

    assert "Invalid character" in deeper(150)


WITHOUT_PAUSE = 35_000_000  # nanoseconds of CPU time, with some for the other threads of a test
LONG = {
    "escapes": job('r = "' + r"a\n" * MIB + '"'),
    "escaped holes": job('r = "' + "$${" * MIB + '"'),
    "escaped holes in a heredoc": job("r = <<E\n" + "$${" * MIB + "\nE\n"),
    "lines of a heredoc": job("r = <<-E\n" + "  a\n" * (MIB // 2) + "E\n"),
    "marks": job('r = "' + "e\u0301" * (3 * MIB // 2) + '"'),
    "a list of parts": job(f'r = split("a", "{"a" * 3 * MIB}")'),
    "fields": job(r'r = csvdecode("a,b\n' + r"1,2\n" * (MIB // 2) + '")'),
    "a format": job(f'r = formatdate("{"Y" * 3 * MIB}", "2000-01-01T00:00:00Z")'),
    "a query": job(f'r = urlencode("{"é" * MIB}")'),
}


@pytest.mark.parametrize("name", LONG)
async def test_long_text_does_not_hold_the_gil(name: str) -> None:
    def read() -> None:
        with suppress(HclError):  # some of the texts are too much work
            parse(LONG[name])

    async def longest() -> int:
        async with longest_wait() as measure:
            await trio.to_thread.run_sync(read)
        return measure.longest

    await check_steps(longest, WITHOUT_PAUSE, 3, name)


def test_text_with_many_escapes_has_the_same_value() -> None:
    text = "".join(f"{number}\n" for number in range(30_000))
    escaped = text.replace("\n", r"\n")
    assert value(f'"{escaped}"') == text
    assert value(f'"{escaped}$${{x}}"') == text + "${x}"
    dollars = "$${x} " * 30_000
    assert value(f"<<E\n{dollars}\nE\n") == dollars.replace("$$", "$") + "\n"


def test_long_text_is_normalized_like_a_short_one() -> None:
    text = "e\u0301a\u0323\u0307 \u1112\u1161\u11ab" * 20_000
    assert value(f'"{text}"') == unicodedata.normalize("NFC", text)
