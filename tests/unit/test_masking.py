"""Masks: no secret remains visible, nothing else changes, and every length stays."""

import base64
import json
import random
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.text import masking
from daemon.text.masking import LEAST, Matcher, TaskSecrets, find_mask, mask_of, may_have_mask

SECRET = b"p4ss/w0rd+&x"
# None of these letters occurs in a mask, so a match in the output cannot come from a mask.
LETTERS = st.sampled_from(b"xyz")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (b"password p4ss/w0rd+&x is wrong", "password ‹masked› is wrong"),
        (b"p4ss/w0rd+&xp4ss/w0rd+&x", "‹masked›‹masked›"),
        (b"p4ss/w0rd+&", "p4ss/w0rd+&"),
        (b"", ""),
    ],
)
def test_secret_is_masked_at_any_position(text: bytes, masked: str) -> None:
    assert Matcher([SECRET]).mask(text).decode() == masked


@pytest.mark.parametrize(
    "form",
    [
        quote(SECRET.decode(), safe=""),
        quote(SECRET.decode()),
        quote_plus("a secret of words"),
        base64.b64encode(b"user:" + SECRET).decode(),
        base64.urlsafe_b64encode(b"x" + SECRET + b"yz").decode(),
        base64.b64encode(SECRET + b"!").decode(),
    ],
)
def test_a_secret_is_found_in_other_encodings(form: str) -> None:
    text = f"header: {form} end"
    masked = Matcher([SECRET, b"a secret of words"]).mask(text.encode()).decode()
    assert "‹masked" in masked
    assert len(masked.encode()) == len(text)
    kept = masked.removeprefix("header: ").removesuffix(" end")
    assert len([item for item in kept.replace("masked", "") if item.isalnum()]) <= 10


def test_each_line_of_a_secret_is_masked() -> None:
    key = b"-----BEGIN KEY-----\r\nMIIEvQIBADAN\nshort\n"
    assert Matcher([key]).mask(b"read MIIEvQIBADAN short").decode() == "read ‹masked› short"


def test_overlapping_secrets_are_masked_completely() -> None:
    matcher = Matcher([b"aaaabbbbcccc", b"ccccddddeeee"])
    assert matcher.mask(b"-aaaabbbbccccddddeeee-").decode() == "-‹masked›********-"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (b"ecret-value-of-it. then secret-va", "‹masked*****›. then ‹***›"),
        (b"then secret-", "then secret-"),
        (b"of-it. then", "of-it. then"),
    ],
)
def test_truncated_secret_is_masked(text: bytes, masked: str) -> None:
    assert Matcher([b"secret-value-of-it"]).mask(text, is_cut=True).decode() == masked


def test_newest_secrets_are_known() -> None:
    task_secrets = TaskSecrets()
    for number in [*range(1500), 700]:
        task_secrets.add(f"secret {number}")
    task_secrets.drop_oldest()
    assert len(list(task_secrets)) == 1000
    assert list(task_secrets)[-1] == b"secret 700"
    assert b"secret 499" not in list(task_secrets)


def test_secrets_in_use_are_dropped_last() -> None:
    task_secrets = TaskSecrets(f"secret {number}" for number in range(1500))
    task_secrets.drop_oldest(["secret 0", "unknown"])
    assert len(task_secrets.values) == 1000
    assert task_secrets.values[-2:] == ["secret 1499", "secret 0"]
    assert "secret 500" not in task_secrets.values


def test_number_of_forms_is_bounded_with_whole_secrets_first(
    capfd: pytest.CaptureFixture[str],
) -> None:
    chance = random.Random(7)

    def text(size: int) -> bytes:
        return bytes(chance.choices(range(97, 123), k=size))

    oldest = text(20)
    files = [b"\n".join(text(40) for _ in range(3000)) for _ in range(3)]
    matcher = Matcher([oldest, *files])
    matcher.warm()
    assert len(matcher._forms) == 20_000
    assert matcher.mask(oldest) == mask_of(20)
    last, first = files[-1].splitlines()[0], files[0].splitlines()[-1]
    assert matcher.mask(last) == mask_of(40)
    assert matcher.mask(first) == first
    assert "out of memory" not in capfd.readouterr().err


def test_short_values_and_whitespace_are_no_secrets() -> None:
    assert Matcher([b"short", b"       7 \n\n", b""]).mask(b"short 7") == b"short 7"


@given(st.binary(min_size=LEAST, max_size=40))
def test_a_mask_has_the_length_of_the_secret(secret: bytes) -> None:
    assert len(mask_of(len(secret))) == len(secret)
    mask_of(len(secret)).decode()


@given(
    st.lists(st.lists(LETTERS, min_size=LEAST, max_size=12).map(bytes), min_size=1, max_size=3),
    st.lists(st.lists(LETTERS, max_size=20).map(bytes), max_size=6),
    st.randoms(use_true_random=False),
)
def test_no_secret_remains_and_other_text_is_unchanged(
    secrets: list[bytes], gaps: list[bytes], chance: random.Random
) -> None:
    text = b"".join(gap + chance.choice(secrets) for gap in gaps)
    masked = Matcher(secrets).mask(text)
    assert len(masked) == len(text)
    covered = {
        place
        for secret in secrets
        for at in range(len(text))
        if text.startswith(secret, at)
        for place in range(at, at + len(secret))
    }
    assert {place for place in range(len(text)) if masked[place] != text[place]} == covered


@given(
    st.binary(min_size=LEAST, max_size=40).filter(lambda line: line == line.strip()),
    st.binary(max_size=40),
    st.binary(max_size=40),
)
def test_binary_secret_is_masked_in_every_encoding(
    secret: bytes, before: bytes, after: bytes
) -> None:
    matcher = Matcher([secret])
    for form in (secret, quote(secret, safe="").encode()):
        assert form not in matcher.mask(before + form + after)
    encoded = base64.b64encode(before + secret + after)
    # In base64, three bytes become four characters. The characters at both ends also depend on
    # other bytes, and reveal little.
    inner = base64.b64encode(b"\0" * (len(before) % 3) + secret)[4:-4]
    assert len(inner) < LEAST or inner not in matcher.mask(encoded)


@given(st.lists(LETTERS, min_size=2 * LEAST, max_size=40).map(bytes), st.integers(LEAST, 40))
def test_no_long_part_of_a_secret_remains_at_a_truncation(secret: bytes, kept: int) -> None:
    matcher, size = Matcher([secret]), min(kept, len(secret) - 1)
    assert matcher.mask(b"- " + secret[:size], is_cut=True) == b"- " + mask_of(size)
    assert matcher.mask(secret[-size:] + b" -", is_cut=True) == mask_of(size) + b" -"


@given(st.integers(LEAST, 60), st.booleans())
def test_every_mask_is_found_in_a_document(size: int, escaped: bool) -> None:
    document = {
        "a": [{"b": "plain ‹quoted›"}, {"c": [1, f"x{mask_of(size).decode()}y"]}],
        "d": None,
    }
    assert find_mask(document) == "a[1].c[1]"
    assert may_have_mask(json.dumps(document, ensure_ascii=escaped).encode())


@pytest.mark.parametrize("before", ["", "‹", "x", "‹x", "x" * 7, "‹" * 9, "x" * 31 + "‹" * 3])
@pytest.mark.parametrize("size", [8, 12, 15, 40])
@pytest.mark.parametrize("mask", [True, False])
def test_mask_is_found_across_chunk_boundaries(
    monkeypatch: pytest.MonkeyPatch, before: str, size: int, *, mask: bool
) -> None:
    monkeypatch.setattr(masking, "_SEARCHED_AT_ONCE", 8)
    text = mask_of(size).decode() if mask else "‹masked****x‹"
    for more in range(9):
        found = f"{before}{'y' * more}{text}{'z' * more}"
        assert find_mask({"a": found}) == ("a" if mask else "")
        assert may_have_mask(json.dumps(found, ensure_ascii=bool(more % 2)).encode())
        assert not may_have_mask(b"x" * more)


@pytest.mark.parametrize("text", ["plain", "‹quoted›", "‹›", "‹*›", "‹masked", "masked***›"])
def test_other_texts_are_no_masks(text: str) -> None:
    assert find_mask({"a": text}) == ""


def test_secrets_of_several_patterns_are_masked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = [f"{number:03}-{letter}-secret".encode() for letter in "abc" for number in range(9)]
    matcher = Matcher(secrets)
    monkeypatch.setattr(masking, "_PIECE", 7)
    divided = Matcher(secrets)
    text = b" and ".join(random.Random(1).sample(secrets, len(secrets)))
    assert divided.mask(text) == matcher.mask(text)
    assert b"secret" not in divided.mask(text)
    assert len(divided._sampled or divided._patterns) > 1


def test_pattern_has_a_limited_number_of_keys() -> None:
    secrets = [f"p{number:05}-secret".encode() for number in range(masking._PIECE + 1)]
    sizes = [len(piece) for piece in masking._divide_keys(secrets)]
    assert sizes == [masking._PIECE, 1]


def test_number_of_candidates_limits_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masking, "_PIECE", 1)
    matcher = Matcher([b"aaaaaaaaaaaaX", b"bbbbbbbbbbbbX"])
    text = b"a" * 2000 + b"b" * 2000 + b"end of text"
    assert b"end of text" not in matcher.mask(text)
    assert len(matcher.mask(text)) == len(text)


def test_first_bytes_of_a_secret_are_masked_at_the_candidate_limit() -> None:
    secret = b"b" * 24 + b"8K2jQxZ4"
    text = b"b" * 58 + secret  # the last candidate is the tenth byte of the secret
    masked = Matcher([secret, b"b" * 12 + b"X"]).mask(text)
    assert len(masked) == len(text)
    assert b"b" not in masked[58:]
