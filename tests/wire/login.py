"""Replay of captured Vault responses against a daemon with a separate fake cloud."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from tests import forks
from tests.fakes import fakecloud
from tests.http_clients import trusted
from tests.wire import replay
from tests.wire.scenarios import DOORS, OUTSIDE, Failures, daemon

CLIENT_ID = "c1000000-0000-4000-8000-000000000001"
CLIENT_SECRET = "fake-client-secret-1"  # noqa: S105  # of a fake cloud
RESOURCE = "api://steward-login"
URLS = ("directory", "resource_manager", "graph", "metadata")
ENVIRONMENT = {
    "CLOUDID_TENANT_ID": fakecloud.TENANT,
    "CLOUDID_AD_RESOURCE": RESOURCE,
    "CLOUDID_CLIENT_ID": CLIENT_ID,
    "CLOUDID_CLIENT_SECRET": CLIENT_SECRET,
}


@contextmanager
def cloud() -> Iterator[str]:
    """Run a cloud; yields its address."""
    process, output = forks.begin(["--port", "0"], env=OUTSIDE, module=fakecloud.__name__)
    try:
        with output:
            yield f"http://127.0.0.1:{json.loads(output.readline())['port']}"
    finally:
        process.kill()
        process.wait(10)


def reset(cloud_url: str) -> None:
    """Restore the initial state of a cloud, except for its signing keys."""
    httpx.post(f"{cloud_url}/_control/world/reset", verify=trusted()).raise_for_status()


@contextmanager
def world(cloud_url: str, needs: list[str], door: str) -> Iterator[tuple[str, str]]:
    """Run a daemon that uses a cloud; `door` is `lean` (the fast path) or `wide`.

    Yield the address of the daemon and an operator's token.
    """
    urls = {f"STEWARD_CLOUD_{name.upper()}_URL": cloud_url for name in URLS}
    fallback = ENVIRONMENT if "env" in needs else {}
    with daemon("--acl", environment={**urls, **fallback, **DOORS[door]}) as url:
        yield url, bootstrap(url)


def bootstrap(url: str) -> str:
    """Return the secret of a token with all permissions."""
    answer = httpx.post(f"{url}/v1/acl/bootstrap", verify=trusted())
    return answer.json()["SecretID"] if answer.is_success else "none"


class Target(replay.Target):
    """The target of the replayer, except that a body is JSON and no header gets a second name."""

    def encode(self, request: dict[str, Any]) -> tuple[str, dict[str, str], bytes | None]:
        path, headers, body = super().encode(request)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        return path, headers, body


def play(scenario: Mapping[str, Any], url: str, cloud_url: str, token: str) -> Failures:
    """Replay a scenario; return the differences."""
    names = {
        "root_token": token,
        "tenant": fakecloud.TENANT,
        "resource": RESOURCE,
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "sub": fakecloud.SUB_A,
        "sub_b": fakecloud.SUB_B,
        "wif_issuer": f"{url}/v1/identity/oidc/plugins",
        "wif_subject": "plugin-identity:root:auth:{{accessor}}",
    }
    targets = {
        None: Target(url, vendor_names=False),
        "cloud": Target(cloud_url, vendor_names=False),
    }
    player = replay.Player(targets[None], names)
    failures = {}
    for step in scenario["steps"]:
        filled = {**step, "request": replay.fill(step["request"], player.names)}
        player.target = targets[step.get("target")]
        try:
            answer = player.perform(filled)
            problems = replay.compare(step, answer, player.names)
            player.capture(step, answer)
        except (OSError, replay.http.client.HTTPException, ValueError) as error:
            problems = [("", f"request failed: {error!r}", "io")]
        if problems and not step.get("peer_only"):
            where, text, _ = problems[0]
            failures[step["id"]] = f"{where or 'body'}: {text}"
    return failures
