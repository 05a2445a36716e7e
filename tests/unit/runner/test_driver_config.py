import msgspec
import pytest

from daemon.runner.core.driver import InvalidConfig
from daemon.runner.drivers.driver_config import faults, read


class Block(msgspec.Struct, frozen=True):
    """A block with a setting of each kind."""

    command: str
    args: list[str] = []
    number: int = 0
    flag: bool = False


def test_block_is_parsed_into_a_record() -> None:
    block = {"command": "/bin/true", "args": ["a"], "number": 3, "flag": True}
    assert read(Block, block) == Block("/bin/true", ["a"], 3, flag=True)


def test_numbers_and_flags_are_converted_to_and_from_texts() -> None:
    block = {"command": 5, "args": [1, True, "x"], "number": "7", "flag": "false"}
    assert read(Block, block) == Block("5", ["1", "true", "x"], 7, flag=False)


def test_a_missing_optional_setting_may_be_null() -> None:
    assert read(Block, {"command": "x", "args": None}) == Block("x")


def test_an_unknown_setting_is_refused_with_the_text_of_nomad() -> None:
    with pytest.raises(InvalidConfig) as refusal:
        read(Block, {"command": "x", "bogus": 1})
    assert str(refusal.value) == (
        "2 errors occurred:\n\t* failed to parse config: \n"
        '\t* Invalid label: No argument or block type is named "bogus".\n\n'
    )


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(InvalidConfig) as refusal:
        read(Block, {"args": "x", "number": "many"})
    text = str(refusal.value)
    assert text.startswith("4 errors occurred:\n")
    assert 'The argument "command" is required, but no definition was found.' in text
    assert 'Inappropriate value for attribute "args": list of string required.' in text
    assert 'Inappropriate value for attribute "number": number required.' in text


def test_number_of_errors_is_that_of_the_listed_lines() -> None:
    with pytest.raises(InvalidConfig) as refusal:
        read(Block, {"command": "x", "a": 1, "b": 2, "c": 3})
    text = str(refusal.value)
    assert text.startswith("4 errors occurred:\n")
    assert text.count("\n\t* ") == 4


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"command": "x"}, None),
        ({"command": "x", "args": "${meta.args}"}, None),
        ({"command": "x", "flag": "${meta.flag}", "number": "7"}, None),
        ({}, 'config has no "command": add it as a string'),
        ({"command": "x", "flags": 1}, 'config has the unknown key "flags" (did you mean "flag"?)'),
        (
            {"command": "x", "zzzzzz": 1},
            'config has the unknown key "zzzzzz"; there are command, args, number, flag',
        ),
        (
            {"command": "x", "number": "y" * 100},
            f'config.number must be a number, but it is the string "{"y" * 59}',
        ),
        (
            {"command": "x", "args": {"a": 1}},
            "config.args must be a list of string, but it is a block",
        ),
        ({"command": "x", "flag": 2}, "config.flag must be a bool, but it is the number 2"),
    ],
)
def test_errors_are_found_before_variables_are_known(
    config: dict[str, object], fault: str | None
) -> None:
    assert list(faults(Block, config)) == ([] if fault is None else [fault])
