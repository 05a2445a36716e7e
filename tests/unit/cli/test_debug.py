"""What a bundle for others does not hold."""

import pytest

from daemon.cli.debug import without_secrets


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"SecretID": "abc"}, {"SecretID": "(removed)"}),
        ({"SecretID": ""}, {"SecretID": ""}),
        ([{"Meta": {"db_password": "x"}}], [{"Meta": {"db_password": "(removed)"}}]),
        ({"ConsulToken": ["a", "b"]}, {"ConsulToken": ["(removed)", "(removed)"]}),
        ({"URL": "https://me:pw@host/x"}, {"URL": "https://host/x"}),
        ({"Tokens": 5, "Name": "web"}, {"Tokens": 5, "Name": "web"}),
    ],
)
def test_what_is_called_like_a_secret_is_removed(document: object, expected: object) -> None:
    assert without_secrets(document) == expected
