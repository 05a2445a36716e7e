"""Recorded Nomad responses, parsed for comparison with pure functions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.records.base import Record
from storage.records.codec import Document, JobDocument, decode
from tests.wire.scenarios import names_in

GOLDEN = Path(__file__).parents[2] / "wire" / "golden"
Step = dict[str, Any]


class Registration(Record, frozen=True, kw_only=True):
    """The part of a request that holds a job."""

    job: JobDocument | None = None


def document(job: object) -> Document:
    """Return a job of a request after decoding: checked and renamed."""
    found = decode(Registration, json.dumps({"Job": job}).encode()).job
    assert found is not None
    return found


def scenario(name: str) -> list[Step]:
    return json.loads((GOLDEN / "jobs" / f"{name}.json").read_text())["steps"]


def scenarios() -> Iterator[tuple[str, list[Step]]]:
    """Yield the scenarios that `pending.txt` does not list."""
    waiting = names_in("pending.txt")
    for path in sorted((GOLDEN / "jobs").glob("*.json")):
        if path.stem not in waiting:
            yield path.stem, scenario(path.stem)


def sent_job(step: Step) -> Any:
    """Return the job that a step registers, validates or plans; None when it sends none."""
    request = step.get("request", {})
    body = request.get("body")
    posts = request.get("method") in ("POST", "PUT") and isinstance(body, dict)
    job = body.get("Job") if posts else None
    return job if isinstance(job, dict) and "{{" not in json.dumps(job) else None
