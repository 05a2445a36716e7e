"""Headers of a request: which of those that are repeated count."""

import pytest

from daemon.web.request_head import headers, token


@pytest.mark.parametrize("name", ["x-nomad-token", "x-vault-token", "x-service-token"])
def test_first_of_repeated_tokens_counts(name: str) -> None:
    found = headers([(name.encode(), b"first"), (name.encode(), b"second")])
    assert token(found, "/v1/jobs") == "first"


def test_addresses_of_all_proxies_are_kept_in_order() -> None:
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
def test_jobs_api_takes_a_bearer_from_the_first_authorization_only(
    given: tuple[bytes, ...], jobs: str, secrets: str
) -> None:
    found = headers([(b"authorization", value) for value in given])
    assert (token(found, "/v1/jobs"), token(found, "/v1/sys/auth")) == (jobs, secrets)
