"""Any text is accepted, or refused with the declared error; `bench/fuzz.py` sends many more."""

from collections.abc import Iterator

import pytest

from tests.fuzz.frames import conversations
from tests.fuzz.send import Attack
from tests.fuzz.targets import TARGETS
from tests.wire.scenarios import daemon

TEXTS = 400
CONVERSATIONS = 40


@pytest.mark.parametrize("name", TARGETS)
def test_any_text_gets_a_response(name: str) -> None:
    target = TARGETS[name]
    taken = [target.look(text) for text in target.texts(15, TEXTS)]
    assert len(taken) == TEXTS
    assert any(taken) or name == "values of variables"  # few texts are valid there


# Inputs for which longer runs found an error.
FOUND = [
    ("job files", 'job "x"" {\n  name = "%{ if true }'),  # the error named a position after the end
    ("jobs", '{"Job": {"ID": "a", "TaskGroups": [{"Name": "web", "Volumes": {"": null}}]}}'),
    ("settings in a file", "tls_cert = true"),
    ("settings in a file", 'data_dir = "~nobody.there/x"'),
    ("settings in a file", f"retention_days = {10**30}"),
    ("settings in variables", "port = \ud800"),
]


@pytest.mark.parametrize(("name", "text"), FOUND)
def test_input_that_fuzzing_found_is_handled(name: str, text: str) -> None:
    assert TARGETS[name].look(text) is False


@pytest.fixture(scope="module")
def attack() -> Iterator[Attack]:
    with daemon() as address:
        attack = Attack(address)
        yield attack
        attack.end()


def test_any_message_sequence_gets_a_response(attack: Attack) -> None:
    alloc_id = attack.start_talker()
    faults = [attack.fault_of_talk(sent, alloc_id) for sent in conversations(15, CONVERSATIONS)]
    assert faults == [None] * CONVERSATIONS
