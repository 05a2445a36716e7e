"""Job files of the corpus, compared with Nomad's responses: the job, or errors with positions."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from daemon.jobspec.complete import complete
from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.hcl.source import HclError
from daemon.jobspec.parse import FILE_NAME, JobFile, parse_job

GOLDEN = Path(__file__).parent / "golden" / "hcl"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.hcl"))
# Intended differences; tests/unit/jobspec/test_parser_differences.py tests Steward's results.
DECIDED = {
    "affinity-weight-range",
    "constraints-shortcut-sets",
    "err-hclv1-flag-v1-syntax",
    "err-hclv1-flag-v1-syntax-other",
    "err-var-flags-missing-default",
    "err-var-sensitive",
    "group-vault-and-secret-inherit",
    "secret-blocks",
    "var-flags",
    "var-flags-and-file",
}
OUTSIDE = FunctionEnvironment(random=secrets.token_bytes)
EXPRESSIONS = json.loads((GOLDEN / "expressions.json").read_text())
QUOTED = re.compile(r'"[^" ]+"')


def parsed(text: str, request: Mapping[str, Any]) -> dict[str, Any]:
    variables = request.get("Variables")
    flags = request.get("VariableFlags", {})
    file = JobFile(
        text=text,
        variable_files=((FILE_NAME, variables),) if variables else (),
        flags={name: value for name, value in flags.items() if isinstance(value, str)},
        is_v1=request.get("HCLv1", False),
    )
    job = parse_job(file, OUTSIDE)
    return complete(job) if request.get("Canonicalize") else job


def typed(value: object) -> object:
    """Return a value for comparison, in which true differs from 1, and 1 equals 1.0."""
    match value:
        case bool():
            return ("bool", value)
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case list():
            return [typed(item) for item in value]
        case _:
            return value


def places(error: HclError) -> set[tuple[str, int, int]]:
    return {
        (cause.source.name, *cause.source.place(cause.start))
        for cause in causes(error)
        if cause.source
    }


def causes(error: HclError) -> Iterator[Any]:
    return (diagnostic for diagnostic in error.diagnostics if not diagnostic.is_echo)


def wanted_places(diagnostics: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    return {
        (
            diagnostic.get("file", FILE_NAME),
            diagnostic["start"]["line"],
            diagnostic["start"]["column"],
        )
        for diagnostic in diagnostics
        if diagnostic["start"] and "value must be known" not in diagnostic["detail"]
    }


def wanted_names(diagnostics: list[dict[str, Any]]) -> set[str]:
    details = [
        diagnostic["detail"].partition(" Did you mean")[0]
        for diagnostic in diagnostics
        if diagnostic["start"]
    ]
    return {name for detail in details for name in QUOTED.findall(detail)}


def read(name: str, kind: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.{kind}.json").read_text())


def text_of(name: str) -> str:
    return (GOLDEN / f"{name}.hcl").read_bytes().decode()


@pytest.mark.parametrize(
    "name", [n for n in NAMES if not n.startswith("err-") and n not in DECIDED]
)
def test_job_file_gives_the_same_job_as_nomad(name: str) -> None:
    job = parsed(text_of(name), read(name, "request"))
    assert typed(job) == typed(read(name, "response")["body"])


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("err-") and n not in DECIDED])
def test_error_is_reported_at_the_position_of_nomad(name: str) -> None:
    with pytest.raises(HclError) as caught:
        parsed(text_of(name), read(name, "request"))
    response = read(name, "response")
    answers = [response, *response.get("variants", ())]
    assert any(wanted_places(answer["diagnostics"]) <= places(caught.value) for answer in answers)
    assert wanted_names(response["diagnostics"]) - set(QUOTED.findall(str(caught.value))) == set()


def expression(case: Mapping[str, Any]) -> str:
    return f"{EXPRESSIONS['before']}{case['expr']}{EXPRESSIONS['after']}"


def cases(*outcomes: str) -> list[dict[str, Any]]:
    return [case for case in EXPRESSIONS["cases"] if case.keys() & set(outcomes)]


@pytest.mark.parametrize("case", cases("value", "absent"), ids=lambda case: case["expr"])
def test_expression_has_the_value_of_nomad(case: dict[str, Any]) -> None:
    config = parsed(expression(case), {})["TaskGroups"][0]["Tasks"][0]["Config"]
    expected = {"r": case["value"]} if "value" in case else {}
    assert typed(config) == typed(expected)


@pytest.mark.parametrize("case", cases("diagnostics"), ids=lambda case: case["expr"])
def test_invalid_expression_is_reported_at_the_position_of_nomad(case: dict[str, Any]) -> None:
    with pytest.raises(HclError) as caught:
        parsed(expression(case), {})
    assert wanted_places(case["diagnostics"]) <= places(caught.value)


@pytest.mark.parametrize("case", cases("invalid_json"), ids=lambda case: case["expr"])
def test_value_that_nomad_cannot_write_as_json_is_an_error(case: dict[str, Any]) -> None:
    with pytest.raises(HclError, match="zero"):
        parsed(expression(case), {})
