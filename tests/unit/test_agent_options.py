"""The options of `steward agent` have the same values with and without Click."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.process.agent import agent, parse_with_click
from daemon.process.agent_start import FLAGS, REPEATED, VALUES, parse_options
from daemon.text.option_syntax import normalize_options

WORDS = st.sampled_from(
    [
        *("--dev", "-dev", "--acl", "--bind", "--bind=::1", "-port=0", "-port", "--config"),
        *("--node-meta", "--node-meta=a=b", "a=b", "0", "", "-", "--", "-1", "--node_meta=a"),
        *("--por", "--dev=true", "--help", "--user=", "x y", "-c", "--no-such"),
    ]
)


@given(st.lists(WORDS, max_size=6))
def test_options_that_need_no_click_have_the_values_of_click(words: list[str]) -> None:
    arguments = normalize_options(words)
    options = parse_options(arguments)
    if options is not None:
        assert options == parse_with_click(arguments)


def test_each_option_of_the_command_is_known() -> None:
    # Another test may have added spellings of flags with values, which are hidden.
    options = [option for option in agent.params if not getattr(option, "hidden", False)]
    names = {option.name for option in options}
    assert names - {"file"} | {"config"} == FLAGS | VALUES | {REPEATED}
    assert {option.name for option in options if getattr(option, "is_flag", False)} == FLAGS


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--port"], ["--no-such", "x"], ["word"], ["--dev=true"], ["--port", "-1"]],
)
def test_unusual_arguments_are_left_to_click(words: list[str]) -> None:
    assert parse_options(words) is None


def test_options_with_one_dash_are_understood() -> None:
    arguments = normalize_options(["-dev", "-port", "0", "-node-meta=a=b", "-node-meta", "c=d"])
    assert parse_options(arguments) == {"dev": True, "port": "0", "node_meta": ("a=b", "c=d")}
