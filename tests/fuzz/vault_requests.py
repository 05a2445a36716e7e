"""Malformed requests to the Vault API: captured scenarios in random order and with changes."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.requests import BODIES, JUNK, TEXTS, Asked, one_in, requests

SCENARIOS = Path(__file__).parent.parent / "wire/golden/auth"
DURATIONS = ("", "1s", "768h", "-1", "1e30", 2**63, 10**30, "9" * 40 + "h")


def _captured() -> list[dict[str, Any]]:
    steps = [
        step
        for path in sorted(SCENARIOS.glob("*.json"))
        for step in json.loads(path.read_text()).get("steps", ())
    ]
    asked = (step["request"] for step in steps if not step.get("target"))
    # A request for `activecode` chooses the status of its response, even one that would be a fault.
    return [item for item in asked if "code" not in item["path"] and "{{" not in item["path"]]


_CAPTURED = _captured()
_SEEN = defaultdict[str, list[Any]](list)  # field of a body -> recorded values
for _one in _CAPTURED:
    for _name, _value in (_one["body"] if isinstance(_one.get("body"), dict) else {}).items():
        _SEEN[_name].append(_value)


@st.composite
def calls(draw: st.DrawFn) -> Asked:
    """Draw a call of the Vault API."""
    one = draw(st.sampled_from(_CAPTURED))
    method, path = one["method"], one["path"]
    if draw(one_in(10)):
        method = draw(st.sampled_from(("GET", "LIST", "POST", "PUT", "DELETE", "PATCH", "HEAD")))
    if draw(one_in(20)):
        path += draw(
            st.sampled_from(("/", "//x", "/..", "/%00", "/a%2Fb", "?list=true", "?help=1"))
        )
    headers = {"X-Vault-Wrap-TTL": "60s"} if draw(one_in(20)) else {}
    return Asked(method, path, draw(_bodies(one.get("body"))), headers)


@st.composite
def _bodies(draw: st.DrawFn, body: Any) -> bytes | None:
    if draw(one_in(15)):
        return draw(st.sampled_from(BODIES))
    if not isinstance(body, dict):
        return None
    changed = dict(body)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(_SEEN)))
        kinds = (_SEEN[name], (*JUNK, *TEXTS), DURATIONS)
        changed[name] = draw(st.sampled_from(draw(st.sampled_from(kinds))))
    return json.dumps(changed).encode()


def any_requests() -> st.SearchStrategy[Asked]:
    """Return a strategy for requests to either API."""
    return st.one_of(requests(), requests(), requests(), calls())
