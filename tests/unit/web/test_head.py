"""Headers of a request: which value of a repeated header counts."""

import pytest

from daemon.web.request import SHORT_BODY
from daemon.web.request_head import (
    RequestHead,
    accepts_gzip,
    clean_path,
    has_long_body,
    headers,
    namespace,
    token,
)


@pytest.mark.parametrize("name", ["x-nomad-token", "x-vault-token", "x-service-token"])
def test_first_of_repeated_tokens_is_used(name: str) -> None:
    found = headers([(name.encode(), b"first"), (name.encode(), b"second")])
    assert token(found, "/v1/jobs") == "first"


@pytest.mark.parametrize(
    ("given", "jobs", "secrets"),
    [
        ({"x-nomad-token": "n", "x-vault-token": "v"}, "n", "v"),
        ({"x-vault-token": "v", "x-nomad-token": "n", "x-service-token": "s"}, "s", "s"),
        ({"x-vault-token": "", "x-nomad-token": "n"}, "n", "n"),
        ({"x-vault-token": "v", "x-nomad-token": " "}, "v", "v"),
        ({"x-vault-token": "v", "authorization": "Bearer b"}, "v", "v"),
    ],
)
def test_header_of_the_own_api_counts(given: dict[str, str], jobs: str, secrets: str) -> None:
    assert (token(given, "/v1/jobs"), token(given, "/v1/sys/auth")) == (jobs, secrets)


def test_addresses_of_all_proxies_are_read_in_order() -> None:
    pairs = [(b"x-forwarded-for", b"a, b"), (b"host", b"h"), (b"x-forwarded-for", b"c")]
    assert headers(pairs) == {"x-forwarded-for": "a, b, c", "host": "h"}


@pytest.mark.parametrize(
    ("given", "jobs", "secrets"),
    [
        ((b"Bearer a",), "a", "a"),
        ((b"bearer a",), "a", ""),
        ((b"Basic b", b"Bearer a"), "", "a"),
        ((b"bearer b", b"Bearer a"), "b", "a"),
        ((b"Bearer a", b"Basic b"), "a", "a"),
        ((b"Bearer a", b"Bearer b"), "a", "a"),
        ((b"Basic b",), "", ""),
    ],
)
def test_jobs_api_reads_a_bearer_only_from_the_first_authorization(
    given: tuple[bytes, ...], jobs: str, secrets: str
) -> None:
    found = headers([(b"authorization", value) for value in given])
    assert (token(found, "/v1/jobs"), token(found, "/v1/sys/auth")) == (jobs, secrets)


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("gzip", True),
        ("br, GZip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("xgzip", False),
        ("", False),
    ],
)
def test_gzip_needs_a_weight(text: str, is_accepted: bool) -> None:
    assert accepts_gzip({"accept-encoding": text}) is is_accepted


@pytest.mark.parametrize(
    ("given", "is_long"),
    [
        ({}, False),
        ({"content-length": "0"}, False),
        ({"content-length": f"{SHORT_BODY}"}, False),
        ({"content-length": f"{SHORT_BODY + 1}"}, True),
        ({"content-length": "9" * 15}, True),
        ({"content-length": "0" * 16}, True),
        ({"content-length": "-1"}, True),
        ({"content-length": "x"}, True),
        ({"content-length": "\u0661"}, True),
        ({"transfer-encoding": "chunked"}, True),
        ({"transfer-encoding": "chunked", "content-length": "1"}, True),
    ],
)
def test_body_is_short_only_if_its_length_says_so(given: dict[str, str], is_long: bool) -> None:
    head = RequestHead(method="POST", target=b"/v1/jobs", query="", headers=given)
    assert has_long_body(head) is is_long


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [
        ("/v1/jobs", "/v1/jobs"),
        ("/v1//jobs", "/v1/jobs"),
        ("/v1/./jobs/", "/v1/jobs/"),
        ("/v1/job/../jobs", "/v1/jobs"),
        ("/a/b/../../c", "/c"),
        ("/../..", "/"),
        ("/", "/"),
        ("//", "/"),
        ("", "/"),
    ],
)
def test_path_is_cleaned_like_go_does(path: str, cleaned: str) -> None:
    assert clean_path(path) == cleaned


def test_only_the_jobs_api_reads_its_namespace_from_a_header() -> None:
    given = {"x-nomad-namespace": "n"}
    assert namespace(given, "/v1/jobs") == "n"
    assert namespace(given | {"x-service-namespace": "s"}, "/v1/jobs") == "s"
    assert namespace(given | {"x-service-namespace": "s"}, "/v1/sys/auth") == ""
    assert namespace({}, "/v1/jobs") == ""


def test_first_value_of_other_repeated_headers_counts() -> None:
    assert headers([(b"host", b"a"), (b"host", b"b"), (b"x", b"")]) == {"host": "a", "x": ""}


@pytest.mark.parametrize("weight", ["q=0.5", "q=1", "q=0.001", "level=9", ""])
def test_gzip_with_a_weight_above_zero_is_accepted(weight: str) -> None:
    assert accepts_gzip({"accept-encoding": f"gzip;{weight}"}) is True
    assert accepts_gzip({"accept-encoding": f"br, gzip ; {weight}, gzip;q=0"}) is True
