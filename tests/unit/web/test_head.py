"""Headers of a request: which of those that are repeated count."""

import pytest

from daemon.web.head import headers, token


@pytest.mark.parametrize("name", ["x-nomad-token", "x-vault-token", "x-service-token"])
def test_first_of_repeated_tokens_counts(name: str) -> None:
    found = headers([(name.encode(), b"first"), (name.encode(), b"second")])
    assert token(found, "/v1/jobs") == "first"


def test_addresses_of_all_proxies_are_kept_in_order() -> None:
    pairs = [(b"x-forwarded-for", b"a, b"), (b"host", b"h"), (b"x-forwarded-for", b"c")]
    assert headers(pairs) == {"x-forwarded-for": "a, b, c", "host": "h"}
