"""Headers of a request: which value of a repeated header counts."""

import pytest

from daemon.web.request_head import accepts_gzip, headers, token


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
