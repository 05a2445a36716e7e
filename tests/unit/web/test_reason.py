"""Reason phrases: the text after every status that a response can have."""

from http import HTTPStatus

import pytest

from daemon.web.reason import reason


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (200, "OK"),
        (404, "Not Found"),
        (413, "Request Entity Too Large"),
        (416, "Requested Range Not Satisfiable"),
        (422, "Unprocessable Entity"),
        (473, "status code 473"),
    ],
)
def test_reason_phrase_matches_nomad_and_vault(status: int, phrase: str) -> None:
    assert reason(status) == phrase


@pytest.mark.parametrize("status", [414, 417, 423])
def test_other_reason_phrases_are_those_of_python(status: int) -> None:
    assert reason(status) == HTTPStatus(status).phrase
