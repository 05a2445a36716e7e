"""Any text gives a value, or errors with positions in the text."""

import json
from pathlib import Path

import pytest

from daemon.jobspec.complete import complete
from daemon.jobspec.hcl.format import formatted
from daemon.jobspec.hcl.parser import read_body
from daemon.jobspec.hcl.source import HclError, SourceText
from daemon.jobspec.parse import JobFile, parse_job
from storage.records.codec import encode
from tests.fuzz.texts import texts
from tests.unit.jobspec.hcl.build import OUTSIDE

GOLDEN = Path(__file__).parents[3] / "wire/golden/hcl"
LISTED = json.loads((GOLDEN / "expressions.json").read_text())
CORPUS = [
    *[path.read_bytes().decode() for path in sorted(GOLDEN.glob("*.hcl"))],
    *[f"{LISTED['before']}{case['expr']}{LISTED['after']}" for case in LISTED["cases"]],
]
COUNT = 300  # texts of a seed; bench/fuzz.py takes more


def outcome(file: JobFile) -> HclError | None:
    """Return the error of a file. Anything but `HclError` is a defect."""
    try:
        encode(complete(parse_job(file, OUTSIDE)))
    except HclError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(5))
def test_any_text_becomes_a_job_or_located_errors(seed: int) -> None:
    for text in texts(seed, COUNT, CORPUS):
        error = outcome(JobFile(text=text, is_v1=seed % 2 == 1))
        if error is not None:
            encode(error.explained())
            assert error.diagnostics
            assert all(
                0 <= diagnostic.start <= diagnostic.end <= len(diagnostic.source.text)
                for diagnostic in error.diagnostics
                if diagnostic.source
            )


@pytest.mark.parametrize("seed", range(10, 12))
def test_any_text_can_set_variables(seed: int) -> None:
    job = (
        'variable "a" {}\nvariable "b" {\n  type = list(string)\n}\njob "x" {\n  name = var.a\n}\n'
    )
    for text in texts(seed, COUNT, CORPUS):
        outcome(JobFile(text=job, variable_files=(("vars", text),), flags={"b": text}))


@pytest.mark.parametrize("seed", range(20, 23))
def test_formatting_preserves_the_meaning_of_a_readable_file(seed: int) -> None:
    for text in texts(seed, COUNT, CORPUS):
        try:
            form = formatted(SourceText("x", text))
        except HclError:
            continue
        assert formatted(SourceText("x", form)) == form
        read_body(SourceText("x", form))
        before, after = outcome(JobFile(text=text)), outcome(JobFile(text=form))
        assert (before is None) == (after is None)
