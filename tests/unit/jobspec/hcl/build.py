"""Job files for tests, and their results."""

from collections.abc import Mapping

import pytest

from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.hcl.source import HclError
from daemon.jobspec.parse import FILE_NAME, JobFile, parse_job
from storage.records.codec import Document

OUTSIDE = FunctionEnvironment(random=bytes)  # zeros instead of random bytes


def job(config: str, *, before: str = "") -> str:
    """Return a job file whose only task has this configuration; `before` is text before the job."""
    return (
        f'{before}\njob "x" {{\n  group "g" {{\n    task "t" {{\n      driver = "d"\n'
        f"      config {{\n{config}\n      }}\n    }}\n  }}\n}}\n"
    )


def parse(
    text: str,
    *,
    variables: str = "",
    flags: Mapping[str, str] | None = None,
    is_v1: bool = False,
) -> Document:
    """Return the job of a file; `variables` is the text of a variables file."""
    files = ((FILE_NAME, variables),) if variables else ()
    file = JobFile(text=text, variable_files=files, flags=flags or {}, is_v1=is_v1)
    return parse_job(file, OUTSIDE)


def value(expression: str, *, before: str = "") -> object:
    """Return the value of an expression in a job file; `before` is text before the job."""
    config = parse(job(f"r = {expression}", before=before))["TaskGroups"][0]["Tasks"][0]["Config"]
    return config.get("r")


def refused(text: str, **given: Mapping[str, str]) -> str:
    """Return the error about an invalid file."""
    with pytest.raises(HclError) as caught:
        parse(text, **given)
    return str(caught.value)
