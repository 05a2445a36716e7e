"""Reading requests as a server in Go reads them, and writing names in both spellings."""

import json

import msgspec
import pytest

from daemon.jobs.evaluate import JobEvaluateRequest
from daemon.jobs.register import JobRegisterRequest
from storage.errors import Malformed
from storage.records import go_json
from storage.records.base import HOUR, MINUTE
from storage.records.codec import (
    MAX_DEPTH,
    decode,
    excess_of_values,
    has_more_values,
    job_document,
    may_have_more_values,
    parse,
)
from storage.records.go_base64 import decode_base64
from storage.records.job import SubmittedJob
from storage.records.node_pool import NodePool
from storage.records.task import SecretsConfig
from storage.records.times import nanoseconds, rfc3339
from tests.samples import group, job, task


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "Request body is empty"),
        (" \r\n\t", "EOF"),
        ("{", "unexpected EOF"),
        ('{"a"', "unexpected EOF"),
        ('"a', "unexpected EOF"),
        ("nul", "unexpected EOF"),
        ("not json", "invalid character 'o' in literal null (expecting 'u')"),
        ('{"a":tru}', "invalid character '}' in literal true (expecting 'e')"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        ('{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
        ("[1 2]", "invalid character '2' after array element"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("'a'", r"invalid character '\'' looking for beginning of value"),
        ('"\n"', r"invalid character '\n' in string literal"),
        ('"\x01"', r"invalid character '\x01' in string literal"),
        (r'"\q"', "invalid character 'q' in string escape code"),
        (r'"\u00g0"', r"invalid character 'g' in \u hexadecimal character escape"),
        ("[-a]", "invalid character 'a' in numeric literal"),
        ("[1.a]", "invalid character 'a' after decimal point in numeric literal"),
        ("[1ex]", "invalid character 'x' in exponent of numeric literal"),
    ],
)
def test_invalid_json_is_refused_with_the_text_of_go(body: str, text: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse(body.encode())
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("body", "value"),
    [('{"a":1} trailing', {"a": 1}), ("1 2", 1), (' [1,"\\u00e9"] x', [1, "é"]), ("null,", None)],
)
def test_text_after_the_first_value_is_ignored(body: str, value: object) -> None:
    assert parse(body.encode()) == value


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_has_a_limit(opening: str) -> None:
    with pytest.raises(Malformed, match="nested more than"):
        parse((opening * 10_000).encode())
    with pytest.raises(Malformed, match="nested more than"):
        parse(("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)).encode())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("[]", "json: cannot unmarshal array into Go value of type api.JobRegisterRequest"),
        (
            '{"Job":"x"}',
            "json: cannot unmarshal string into Go struct field JobRegisterRequest.Job "
            "of type api.Job",
        ),
        (
            '{"Job":{"ID":3}}',
            "json: cannot unmarshal number into Go struct field Job.Job.ID of type string",
        ),
        (
            '{"Job":{"Priority":1.5}}',
            "json: cannot unmarshal number 1.5 into Go struct field Job.Job.Priority of type int",
        ),
        (
            '{"Job":{"TaskGroups":{"a":1}}}',
            "json: cannot unmarshal object into Go struct field Job.Job.TaskGroups "
            "of type []*api.TaskGroup",
        ),
        (
            '{"Job":{"TaskGroups":[{"Tasks":[{"KillTimeout":"5s"}]}]}}',
            "json: cannot unmarshal string into Go struct field "
            "Task.Job.TaskGroups.Tasks.KillTimeout of type time.Duration",
        ),
        (
            '{"Job":{"Meta":{"a":1}}}',
            "json: cannot unmarshal number into Go struct field Job.Job.Meta of type string",
        ),
        (
            '{"Job":{"Affinities":[{"Weight":300}]}}',
            "json: cannot unmarshal number 300 into Go struct field Affinity.Job.Affinities.Weight "
            "of type int8",
        ),
        (
            '{"JobModifyIndex":-1}',
            "json: cannot unmarshal number -1 into Go struct field "
            "JobRegisterRequest.JobModifyIndex of type uint64",
        ),
        (
            '{"EnforceIndex":"yes"}',
            "json: cannot unmarshal string into Go struct field JobRegisterRequest.EnforceIndex "
            "of type bool",
        ),
    ],
)
def test_wrong_type_is_named_with_its_position(body: str, text: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode(JobRegisterRequest, body.encode())
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [('"24h"', 24 * HOUR), ('"1h30m0s"', 90 * MINUTE), ("7", 7), ('""', 24 * HOUR)],
)
def test_duration_is_read_as_text_and_number(value: str, nanoseconds: int) -> None:
    body = f'{{"Name":"a","NodeIdentityTTL":{value}}}'
    assert decode(NodePool, body.encode()).node_identity_ttl == nanoseconds


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"soon"', "NodeIdentityTTL cannot be read: 'soon' is not a duration"),
        ("true", "cannot unmarshal bool into Go struct field NodePool.NodeIdentityTTL"),
        ("1.5", "cannot unmarshal number 1.5 into Go struct field NodePool.NodeIdentityTTL"),
    ],
)
def test_malformed_duration_is_named(value: str, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        decode(NodePool, f'{{"NodeIdentityTTL":{value}}}'.encode())


def test_names_are_case_insensitive_and_nulls_are_absent() -> None:
    body = b'{"JOB":{"id":"x","taskgroups":[{"name":"a","count":null}]},"Nonsense":1}'
    assert decode(JobRegisterRequest, body).job == {"ID": "x", "TaskGroups": [{"Name": "a"}]}


@pytest.mark.parametrize("spelling", ["SecretsConfig", "Vault", "vault"])
def test_either_spelling_is_read(spelling: str) -> None:
    body = json.dumps({"Job": {"TaskGroups": [{"Tasks": [{spelling: {"Role": "r"}}]}]}})
    request = decode(JobRegisterRequest, body.encode())
    assert request.job == {"TaskGroups": [{"Tasks": [{"SecretsConfig": {"Role": "r"}}]}]}


def test_both_spellings_are_written() -> None:
    secrets = SecretsConfig(role="r")
    document = json.loads(job_document(job("a", group("g", task(secrets_config=secrets)))))
    written = document["TaskGroups"][0]["Tasks"][0]
    assert written["Vault"] == written["SecretsConfig"]
    assert written["Vault"]["Role"] == "r"
    assert document["VaultNamespace"] == document["SecretsNamespace"] == ""


def test_user_defined_keys_are_unchanged() -> None:
    meta = {"SecretsConfig": "mine", "vault": "yours"}
    body = json.dumps({"Job": {"Meta": meta}}).encode()
    assert decode(JobRegisterRequest, body).job == {"Meta": meta}
    assert json.loads(job_document(job("a", meta=meta)))["Meta"] == meta


def test_null_body_is_an_empty_object() -> None:
    assert decode(JobEvaluateRequest, b"null") == JobEvaluateRequest()


@pytest.mark.parametrize(
    ("text", "offset"),
    [("not base64!", 3), ("YQ", 0), ("YWJjZA", 4), ("Y=Q=", 1), ("YQ==x", 4), ("YWJj\nYQ", 5)],
)
def test_invalid_base64_is_refused_with_the_offset_of_go(text: str, offset: int) -> None:
    with pytest.raises(Malformed) as caught:
        decode_base64(text)
    assert str(caught.value) == f"illegal base64 data at input byte {offset}"


@pytest.mark.parametrize(("text", "value"), [("", b""), ("YQ==", b"a"), ("YW\r\nJj", b"abc")])
def test_base64_is_decoded(text: str, value: bytes) -> None:
    assert decode_base64(text) == value


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (1_795_225_201_636_343_439, "2026-11-21T01:40:01.636343439Z"),
        (1_795_225_201_500_000_000, "2026-11-21T01:40:01.5Z"),
        (1_795_225_201_000_000_000, "2026-11-21T01:40:01Z"),
    ],
)
def test_time_is_written_with_its_decimals_and_read_back(time: int, text: str) -> None:
    assert rfc3339(time) == text
    assert nanoseconds(text) == time


@pytest.mark.parametrize(
    "body", [b'{"Meta": "a\xff"}', b'{"Meta": "a\\ud800"}', b'{"Meta": "a\\udc00"}']
)
def test_invalid_character_is_read_as_the_replacement_character(body: bytes) -> None:
    assert parse(body) == {"Meta": "a\ufffd"}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"Meta": {"a": 1}, "TaskGroups": [{"Count": %s}]}', r"TaskGroups\[0\]\.Count"),
        (b'{"Anything": {"x": [0, -%s]}}', r"Anything\.x\[1\]"),
        (b'{"Priority": 1e%s}', "Priority"),
        (b"%s", "the body"),
    ],
)
def test_number_with_thousands_of_digits_is_named_with_its_position(
    body: bytes, where: str
) -> None:
    with pytest.raises(
        Malformed, match=rf"^{where}: the number .{{20}}\.\.\. \(500. digits\) is too large"
    ):
        parse(body % (b"9" * 5000))


def test_long_number_of_the_wrong_type_is_truncated() -> None:
    with pytest.raises(Malformed, match=r"number 9{20}\.\.\. \(300 digits\) into Go struct field"):
        decode(SubmittedJob, b'{"Priority": %s}' % (b"9" * 300))


# ---- large bodies --------------------------------------------------------------------------------


def body_of(*, values: int, text: str = "") -> bytes:
    return json.dumps({"a": [0] * (values - 2), "b": text}).encode()


@pytest.mark.parametrize("text", ["", ",[{" * 500, '",' * 500, "\\" * 501, '\\",' * 500])
def test_values_are_counted_except_in_texts(text: str) -> None:
    body = body_of(values=1000, text=text)
    assert not has_more_values(body, 1003)
    assert has_more_values(body, 900)


def test_excess_of_quotes_is_named() -> None:
    assert excess_of_values(b'"' + b'\\",' * 5_000 + b'"', 1000) == "4000 quotes"
    assert excess_of_values(b"[" + b"1," * 5_000 + b"1]", 1000) == "1000 JSON values"
    assert excess_of_values(b'"' + b"," * 5_000 + b'"', 1000) == ""


@pytest.mark.parametrize(("count", "is_refused"), [(100, False), (5_000, True)])
def test_fast_count_of_values_includes_signs_in_texts(count: int, is_refused: bool) -> None:
    body = body_of(values=10, text="," * count) + b'""' * 5_000
    assert may_have_more_values(body, 4_000) is is_refused


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"Job":{"TaskGroups":[' + b"{}," * 250_000 + b"{}]}}", "200000 JSON values"),
        (b'{"Job":{"Meta":{' + b'"a":"",' * 250_000 + b'"a":""}}}', "200000 JSON values"),
        (b'{"Job":[' + b"[]," * 250_000, "200000 JSON values"),
        (b'{"Job":"' + b'",' * 1_000_000, "200000 JSON values"),
        (b'{"Job":"' + b'\\",' * 1_000_000 + b'"}', "800000 quotes"),
    ],
)
def test_body_with_too_many_values_is_refused_before_decoding(
    body: bytes, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msgspec.json, "decode", None)
    with pytest.raises(Malformed, match=f"the body has more than {limit}: send fewer"):
        parse(body)


def test_long_body_with_few_values_is_accepted() -> None:
    text = 'a, b, [c], {d} and "e"\n' * 50_000
    assert parse(json.dumps({"a": text}).encode()) == {"a": text}


def test_long_invalid_body_is_refused_quickly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(go_json, "end_of_first_value", None)
    with pytest.raises(Malformed, match="the body is not valid JSON: "):
        parse(b'"' + b"a" * 2_000_000 + b'" x')
