"""Data that a debug bundle must not contain."""

import pytest

from daemon.cli.commands.debug import without_secrets


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"SecretID": "abc"}, {"SecretID": "(removed)"}),
        ({"SecretID": ""}, {"SecretID": ""}),
        ([{"Meta": {"db_password": "x"}}], [{"Meta": {"db_password": "(removed)"}}]),
        ({"ConsulToken": ["a", "b"]}, {"ConsulToken": ["(removed)", "(removed)"]}),
        ({"URL": "https://me:pw@host/x"}, {"URL": "https://host/x"}),
        ({"api_key": "x", "ApiKey": "x"}, {"api_key": "(removed)", "ApiKey": "(removed)"}),
        ({"KeyID": "k", "Key": "web"}, {"KeyID": "k", "Key": "web"}),
        ('got "https://h/x?sig=a&b=c": 403', 'got "https://h/x?(removed)": 403'),
        ("run -e DB_PASSWORD=hunter2 -v", "run -e DB_PASSWORD=(removed) -v"),
        ("client_secret='a b', next", "client_secret=(removed), next"),
        ("sent Authorization: Bearer abc.def-_", "sent Authorization: Bearer (removed)"),
        ("got eyJhbGciOiJ9.eyJzdWIi.c2ln back", "got (removed) back"),
        ("hvs.CAESIJ is known", "(removed) is known"),
        ("s.abcdefghijklmnopqrstuvwx is known", "(removed) is known"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nmore",
            "(removed)\nmore",
        ),
        ("-----BEGIN PRIVATE KEY-----\ncut", "(removed)"),
        (
            "Template failed: local/x: line 1: error calling parseInt: 'hunter2' is not a number",
            "Template failed: local/x: line 1: error calling parseInt: (removed)",
        ),
        ("the token has ended: nothing else", "the token has ended: nothing else"),
        ("http://127.0.0.1:4646/v1/jobs is slow", "http://127.0.0.1:4646/v1/jobs is slow"),
        ({"Tokens": 5, "Name": "web"}, {"Tokens": 5, "Name": "web"}),
    ],
)
def test_variable_named_like_a_secret_is_removed(document: object, expected: object) -> None:
    assert without_secrets(document) == expected
