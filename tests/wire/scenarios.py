"""Replay of captured responses against daemons, a new one for each scenario."""

import copy
import json
import os
import re
import signal
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.config.data_directory import store_dir
from storage.check import check
from tests import forks
from tests.wire import replay

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "jobs"
OURS = HERE / "ours"  # scenarios of the specification that no recording covers, in the same form
AUTH = HERE / "golden" / "auth"

# The node that scenarios expect on their server (golden/jobs/README.md, section 1).
NODE = (
    *("--node-name", "node-1", "--node-class", "class-1", "--node-meta", "zone=a"),
    *("--memory-total-mb", "24000"),
)
# Each scenario runs with the fast path for small requests (`lean`). Some scenarios also run without it
# (`wide`): see `runs`.
DOORS = {"lean": {"STEWARD_LEAN_DOOR": "true"}, "wide": {"STEWARD_LEAN_DOOR": "false"}}
# Seconds for a scenario, for its predecessors, and for a retry of differing steps. Some scenarios
# take fifty seconds.
PATIENCE = 300
GIVE_UP_AFTER = 1.0  # seconds that a step known to fail may repeat its request
# Because of the intended difference in `scale/25`, this step waits for a job version that is never
# registered. The last response is compared after the wait.
WAITS_IN_VAIN = {"scale/27"}

Failures = Mapping[str, str]  # step -> the first difference


def scenarios() -> dict[str, dict[str, Any]]:
    """Return the scenarios by name."""
    paths = [*GOLDEN.glob("*.json"), *OURS.glob("*.json")]
    found = [json.loads(path.read_text()) for path in sorted(paths)]
    return {item["scenario"]: item for item in found if "steps" in item}


def login_scenarios() -> dict[str, dict[str, Any]]:
    """Return the scenarios of Vault by their names in the lists."""
    found = {f"auth/{path.stem}": json.loads(path.read_text()) for path in AUTH.glob("*.json")}
    return {name: one for name, one in found.items() if "steps" in one}


def runs(known: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (door, scenario) of each run: all scenarios through `lean`, and some through `wide`.

    The handlers do not depend on the door, so a second run of each scenario would repeat the first.
    The runs through `wide` contain each route with each status, with and without an index. Through
    both doors, `tests/differential` sends random sessions, and `tests/parts/web/test_fast_path.py`
    sends each form of a request.
    """
    kinds = {name: {*map(_kind, one["steps"])} for name, one in known.items()}
    missing, chosen = set[tuple[object, ...]]().union(*kinds.values()), set[str]()
    while missing:
        # A short scenario is preferred. Each daemon takes as long as ten steps.
        best = max(
            kinds,
            key=lambda name: (len(kinds[name] & missing) / (10 + len(known[name]["steps"])), name),
        )
        chosen.add(best)
        missing -= kinds[best]
    return [("lean", name) for name in known] + [("wide", name) for name in known if name in chosen]


def _kind(step: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the route of a step, with its method and status, and whether it names an index."""
    status = (step.get("response") or {}).get("status")
    if not (request := step.get("request")):
        return (step.get("join") is not None, status)
    path = re.sub(r"\{\{[^}]*\}\}", "x", request["path"].partition("?")[0])
    has_index = "index" in str(request.get("query") or request["path"])
    return (request["method"], _route(path), status, has_index)


def _route(path: str) -> str:
    """Return the path of the most specific route that matches, or the path itself."""
    return next((route for pattern, route in _patterns() if pattern.fullmatch(path)), path)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    paths = sorted(
        {route.path for route in (*ROUTES, *ENDPOINTS)}, key=lambda path: path.count("{")
    )
    return [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), path) for path in paths]


def wanted(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Return (scenario, door) of the module's tests that are run, in their order."""
    tests = [item for item in request.session.items if item.path == request.node.path]
    found = [test.callspec.params for test in tests if isinstance(test, pytest.Function)]
    return list(
        dict.fromkeys((params["name"], params["door"]) for params in found if "door" in params)
    )


def names_in(file: str) -> set[str]:
    """Return the scenarios and steps in a list; the text after a name is a comment."""
    lines = (HERE / file).read_text().splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


# Read the environment once, because scenarios run in threads, and pytest changes its own variables
# in the meantime.
OUTSIDE = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("STEWARD_", "NOMAD_", "PYTEST_CURRENT_TEST"))
}


@contextmanager
def daemon(*flags: str, environment: Mapping[str, str] = {}) -> Iterator[str]:
    """Run a daemon; yields its address."""
    with (
        tempfile.TemporaryDirectory(prefix="steward-wire-") as directory,
        (Path(directory) / "daemon.log").open("wb") as log,
    ):
        words = ["agent", "--dev", "--port", "0", "--data-dir", f"{directory}/data", *NODE, *flags]
        env = {**OUTSIDE, **environment}
        process, output = forks.begin(words, env=env, stderr=log.fileno())
        try:
            with output:
                yield output.readline().decode().rpartition(" ")[2].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
        assert check(store_dir(Path(directory) / "data")) == []


def run_scenario(scenario: Mapping[str, Any], known: set[str], door: str) -> Failures:
    """Replay a scenario against a fresh daemon of the kind that the scenario expects.

    `door` is `lean` (the fast path) or `wide`. Return the differences; those of steps in `known`
    are expected.
    """
    if scenario["agent"] == "open":
        with daemon(environment=DOORS[door]) as url:
            return play(scenario, url, known)
    with daemon("--acl", environment=DOORS[door]) as url:
        return play(scenario, url, known, bootstrapped(url))


def bootstrapped(url: str) -> Mapping[str, Any]:
    """Create the bootstrap token with a chosen secret; return the placeholders for the replay."""
    secret = str(uuid.uuid4())
    body = json.dumps({"BootstrapSecret": secret}).encode()
    urllib.request.urlopen(f"{url}/v1/acl/bootstrap", body).close()  # noqa: S310  # ours
    return {"token": secret, "management_token": secret}


def play(
    scenario: Mapping[str, Any], url: str, known: set[str], names: Mapping[str, Any] = {}
) -> Failures:
    """Replay a scenario; return the differences. Steps in `known` are expected to differ."""
    player = replay.Player(replay.Target(url, vendor_names=False), dict(names))
    failures = {}
    for step in scenario["steps"]:
        is_known = scenario["scenario"] in known or step["id"] in known
        asked = _hurried(step) if is_known or step["id"] in WAITS_IN_VAIN else step
        if problems := _problems(player, asked):
            where, text, _ = problems[0]
            failures[step["id"]] = f"{where or 'body'}: {text}"
    return failures


def _hurried(step: Mapping[str, Any]) -> dict[str, Any]:
    hurried = copy.deepcopy(dict(step))
    hurried["until_timeout_s"] = min(hurried.get("until_timeout_s", 40), GIVE_UP_AFTER)
    return hurried


def _problems(player: replay.Player, step: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Play a step; return the differences of the answer (as the replayer's own `play` does)."""
    try:
        if step.get("background"):
            player.start(step)
            replay.time.sleep(step.get("settle_s", 0.5))
            return []
        if step.get("join"):
            answer, begun = player.join(step["join"])
            step = dict(begun, **{key: item for key, item in step.items() if key != "request"})
        else:
            answer = player.perform(step)
        player.capture(step, answer)
        found: list[tuple[str, str, str]] = replay.compare(step, answer, player.names)
    except (OSError, replay.http.client.HTTPException, RuntimeError, ValueError, KeyError) as error:
        return [("", f"request failed: {error!r}", "io")]
    return found
