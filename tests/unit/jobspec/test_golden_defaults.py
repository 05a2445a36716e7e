"""Every recorded job registration, and the job with defaults that Nomad returned."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from daemon.jobspec.canonicalize import canonicalize, same_definition
from storage.records.codec import HEAD_FIELDS
from tests.unit.jobspec import recorded

# Changes of a job after its registration: its head, and the effects of stopping and scaling.
NOT_COMPARED = {*HEAD_FIELDS, "Stop", "ServiceTokenID"}
# A scenario in which the server itself reverts to an earlier version.
CHANGED_BY_THE_SERVER = {"deploy-auto-revert"}


def shown_job(step: recorded.Step) -> Any:
    """Return the job that an answer shows, alone or in an allocation; None when it shows none."""
    body = step.get("response", {}).get("body")
    if step.get("request", {}).get("method") != "GET" or not isinstance(body, dict):
        return None
    return body if isinstance(body.get("TaskGroups"), list) else body.get("Job")


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield step ID, registered job and the job that Nomad returns before it is changed again."""
    for name, steps in recorded.scenarios():
        registered: dict[tuple[str, str], Any] = {}
        for step in steps if name not in CHANGED_BY_THE_SERVER else ():
            request, body = step.get("request", {}), step.get("response", {}).get("body")
            namespace = dict(request.get("query") or {}).get("namespace")
            path = re.match(r"/v1/job/([^/]+)/?(revert|scale|)$", request.get("path", ""))
            if sent := isinstance(body, dict) and "Warnings" in body and recorded.sent_job(step):
                namespace = namespace or sent.get("Namespace") or "default"
                kept = {"PreserveCounts", "PreserveResources"} & request["body"].keys()
                job = None if kept else {**sent, "Namespace": namespace}
                registered[namespace, sent["ID"]] = job
            elif path and request["method"] != "GET" and step["response"]["status"] == 200:
                registered.pop((namespace or "default", path[1]), None)
            elif (shown := shown_job(step)) and (
                sent := registered.get((shown["Namespace"], shown["ID"]))
            ):
                yield step["id"], sent, shown


PAIRS = list(pairs())


def as_go_writes(number: str) -> int | float:
    """Return a number as Nomad's clients write it: integers without a fraction."""
    value = float(number)
    return int(value) if value.is_integer() else value


def compared(document: Any) -> Any:
    kept = {name: value for name, value in document.items() if name not in NOT_COMPARED}
    for group in kept["TaskGroups"]:
        if group["Scaling"]:
            group["Scaling"] = {**group["Scaling"], "ID": "", "CreateIndex": 0, "ModifyIndex": 0}
    return kept


def test_recorded_jobs_exist() -> None:
    assert len(PAIRS) >= 30


@pytest.mark.parametrize(("sent", "read"), [pair[1:] for pair in PAIRS], ids=[p[0] for p in PAIRS])
def test_registered_job_is_shown_like_in_nomad(sent: Any, read: Any) -> None:
    job = canonicalize(recorded.document(sent))
    assert compared(json.loads(msgspec.json.encode(job))) == compared(read)


@pytest.mark.parametrize(("sent", "read"), [pair[1:] for pair in PAIRS], ids=[p[0] for p in PAIRS])
def test_job_is_unchanged_after_a_round_trip(sent: Any, read: Any) -> None:
    text = json.dumps(read).replace('"{{job_modify_index}}"', "7")
    plain = json.loads(text, parse_float=as_go_writes)
    numbered = {**plain, "CreateIndex": 7, "JobModifyIndex": 7, "Stop": sent.get("Stop", False)}
    assert same_definition(
        canonicalize(recorded.document(sent)), canonicalize(recorded.document(numbered))
    )
