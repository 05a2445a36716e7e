"""Decoding JSON in steps: the same results as one call, with short calls."""

import json
import random
from collections.abc import Callable

import msgspec
import pytest

from daemon.text import request_fields
from storage.errors import Malformed
from storage.records import json_steps
from storage.records.codec import parse
from storage.records.json_steps import (
    MAX_TEXT,
    MOST_SLOW_NUMBERS,
    PIECE,
    decode_as,
    decode_in_steps,
    is_cheap,
)

SIZE = 4 * 1024 * 1024  # bytes
LONGEST = 3 * PIECE  # bytes of one call
CHARACTERS = [
    "a",
    '"',
    "\\",
    "\n",
    "é",
    "€",
    "😀",
    "\u2028",
    "/",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
]
DAMAGE = [*(bytes([sign]) for sign in b',"[]{}:\\ 1-\xc3\x01\v\f'), b"\\ud83d", b"1[", b"-{"]


def _random_text(source: random.Random, longest: int) -> str:
    return "".join(source.choices(CHARACTERS, k=source.randrange(longest)))


def _random_value(source: random.Random, depth: int) -> object:
    kind = source.random()
    if depth and kind < 0.3:
        return [_random_value(source, depth - 1) for _ in range(source.randrange(6))]
    if depth and kind < 0.6:
        names = [_random_text(source, 5) for _ in range(source.randrange(6))]
        return {name: _random_value(source, depth - 1) for name in names}
    return source.choice([1, -5, 2.5, 1e-7, True, None, 10**18, _random_text(source, 60)])


def _damaged(source: random.Random, body: bytes) -> bytes:
    found = bytearray(body)
    for _ in range(source.randrange(3)):
        at = source.randrange(len(found)) if found else 0
        if source.random() < 0.5:
            del found[at : at + 1]
        else:
            found[at:at] = source.choice(DAMAGE)
    return bytes(found)


def _result(decode: Callable[[bytes], object], body: bytes) -> str:
    try:
        return repr(decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "invalid"


@pytest.mark.parametrize("piece", [8, 16, 40, 100, 1000])
def test_steps_have_the_result_of_one_call(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_steps, "PIECE", piece)
    source, compared, invalid = random.Random(piece), 0, 0
    for _ in range(1000):
        value = _random_value(source, 6)
        plain = json.dumps(
            value, ensure_ascii=source.random() < 0.5, indent=source.choice([None, 1])
        )
        body = _damaged(source, plain.encode()) if source.random() < 0.5 else plain.encode()
        expected = _result(msgspec.json.decode, body)
        try:
            found = _result(decode_in_steps, body)
        except Malformed:  # a limit that only such small pieces reach
            continue
        assert found == expected, body
        compared += 1
        invalid += expected == "invalid"
    assert compared > 300
    assert invalid > 50


@pytest.mark.parametrize(
    "body",
    [
        '{"a":1["x",LONG]}',
        '{"a":-{"b":LONG}}',
        '{"a":1LONG}',
        "[1,\v[LONG]]",
        "\f[LONG]",
        "[LONG]\v",
        "[[LONG]\f]",
        '{"a":[LONG]\v,"b":1}',
    ],
)
def test_damage_next_to_a_long_part_is_an_error(body: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_in_steps(body.replace("LONG", json.dumps("\n" * PIECE)).encode())


def _text(unit: str, size: int = SIZE) -> bytes:
    part = unit.encode()
    return part * (size // len(part))


HOSTILE = {
    "line feeds": b'{"a":"' + _text("\\n") + b'"}',
    "quotes": b'["' + _text('\\"') + b'"]',
    "escapes of letters": b'"' + _text("\\u0041") + b'"',
    "escapes of surrogates": b'{"a":{"b":["' + _text("\\ud83d\\ude00") + b'"]}}',
    "characters of four bytes": b'{"a":["x","' + _text("😀") + b'",1]}',
    "characters of three bytes": b'{"a":"' + _text("€") + b'"}',
    "texts": b"[" + b",".join(b'"%080d"' % number for number in range(50_000)) + b"]",
    "names": b"{" + b",".join(b'"%d":1' % number for number in range(190_000)) + b"}",
    "equal names": b"{" + b'"a":1,' * 190_000 + b'"a":2}',
    "numbers": b'{"a":[' + b"123456789.5," * 190_000 + b"0]}",
    "lists": b"[" + b"[[[]]]," * 60_000 + b"1]",
    "lists with many levels": b"[" + b",".join([b"[" * 98 + b"]" * 98 for _ in range(2000)]) + b"]",
    "texts with line feeds": b"["
    + b",".join([b'"' + _text("\\n", 2**18) + b'"' for _ in range(8)])
    + b"]",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_call_decodes_a_long_part_of_a_hostile_body(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = msgspec.json.decode(body)
    called: list[int] = []
    decode = msgspec.json.decode

    def noting(part: bytes, **options: type) -> object:
        called.append(len(part))
        return decode(part, **options)

    monkeypatch.setattr(msgspec.json, "decode", noting)
    assert parse(body) == expected
    assert max(called) <= LONGEST


@pytest.mark.parametrize("body", [b'{"a":"' + _text("x", 2**24 - 20) + b'"}', b'{"a":1}'])
def test_one_call_decodes_plain_text(body: bytes) -> None:
    assert is_cheap(body)


@pytest.mark.parametrize(
    "number",
    ["1.5e300", "4.9e-324", "1.5E+300", "1e0300", "0." + "0" * 150 + "1", "1" + "0" * 120 + ".5"],
)
@pytest.mark.parametrize("count", [MOST_SLOW_NUMBERS, MOST_SLOW_NUMBERS + 1])
def test_number_of_slow_numbers_is_limited(number: str, count: int) -> None:
    body = f'{{"a":[{",".join([number] * count)}]}}'.encode()
    # The short body is within what the event loop decodes.
    for read in (parse, lambda text: request_fields.parse(text, "")):
        if count > MOST_SLOW_NUMBERS:
            with pytest.raises(Malformed, match="the body has more than 200 numbers with"):
                read(body)
        else:
            assert read(body) == {"a": [float(number)] * count}


def test_texts_may_look_like_slow_numbers() -> None:
    texts = ["5e123", "1.5e300", "0" * 100] * 1000
    assert parse(json.dumps(texts).encode()) == texts


def test_job_file_of_the_maximum_size_passes() -> None:
    line = 'env { "NAME" = "größe\t1" }\n'
    source = line * (4096 * 1024 // len(line.encode()))
    assert parse(json.dumps({"JobHCL": source}).encode()) == {"JobHCL": source}
    utf8 = json.dumps({"JobHCL": source}, ensure_ascii=False).encode()
    assert parse(utf8) == {"JobHCL": source}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            b'{"a":"' + _text("\\n", MAX_TEXT + PIECE) + b'"}',
            "of more than 6291456 bytes that contains escape sequences or non-ASCII characters",
        ),
        (
            b'"' + b"a,{" * (MAX_TEXT // 2) + b'"',
            "bytes, and too many spaces, commas, brackets or digits to be decoded in one step",
        ),
        (b"[" + _text("é", 2 * PIECE) + b"]", "more than 65536 bytes without a quote"),
        (b"[" + _text(" ", 2 * PIECE) + b"1]", "more than 65536 bytes without a quote"),
        (b'{"' + _text("\\n", 2 * PIECE) + b'":1}', "the body has a name of more than 65536 bytes"),
    ],
)
def test_limits_of_steps_are_named(body: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        decode_in_steps(body)


def test_nesting_is_limited() -> None:
    with pytest.raises(RecursionError):
        decode_in_steps(b"[" * 1000)
    with pytest.raises(Malformed, match="the body is nested more than 100 levels deep"):
        parse(b"[" * 60_000)


def test_value_of_an_outside_service_has_its_type() -> None:
    assert decode_as(b'{"a":1}', dict[str, int]) == {"a": 1}
    body = json.dumps({"a": "\n" * (SIZE // 2)}).encode()
    assert not is_cheap(body)
    assert decode_as(body, dict[str, str]) == {"a": "\n" * (SIZE // 2)}
    with pytest.raises(msgspec.ValidationError):
        decode_as(body, dict[str, int])


def test_lone_surrogates_are_replaced_in_long_texts() -> None:
    text = "\\ud800" * 100_000 + "\\ud83d\\ude00" * 10
    assert parse(f'["{text}"]'.encode()) == ["\ufffd" * 100_000 + "😀" * 10]
