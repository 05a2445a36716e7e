"""Values of the keys of workflows that the graph does not check."""

import pytest

from daemon.jobspec.steward_meta.key import MetaExtension
from daemon.jobspec.steward_meta.step_keys import GATE_BY, OUTPUTS, RETRY_EXIT_CODES
from storage.errors import Invalid


def test_lists_are_parsed() -> None:
    assert RETRY_EXIT_CODES.read("75, 100-110") == ((75, 75), (100, 110))
    assert GATE_BY.read("role:release,policy:ops") == ("role:release", "policy:ops")
    assert OUTPUTS.read("rows, Path_2") == ("rows", "Path_2")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (RETRY_EXIT_CODES, "0", 'has "0"; write exit codes from 1 to 255'),
        (RETRY_EXIT_CODES, "9-", 'has "9-"; write exit codes'),
        (RETRY_EXIT_CODES, "9-3", 'has the range "9-3", whose first code is higher than its last'),
        (
            RETRY_EXIT_CODES,
            ",".join(f"1-{number}" for number in range(1, 102)),
            "at most 100 codes",
        ),
        (GATE_BY, "release", 'has "release"; write role:NAME or policy:NAME'),
        (GATE_BY, "role:", 'has "role:"; write role:NAME or policy:NAME'),
        (
            OUTPUTS,
            "a-b",
            'contains the invalid name "a-b"; a name consists of letters, digits and _',
        ),
        (OUTPUTS, ",".join(f"a{number}" for number in range(129)), "at most 128 names"),
    ],
)
def test_invalid_lists_are_refused_with_a_fix(
    key: MetaExtension[object], text: str, expected: str
) -> None:
    with pytest.raises(Invalid) as refused:
        key.read(text)
    assert expected in str(refused.value)
