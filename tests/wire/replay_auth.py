#!/usr/bin/env python3
"""Replay the recorded scenarios of the directory-identity method.

    python ../fakes/fakecloud.py --port 8700 &
    python replay_auth.py --url http://127.0.0.1:8200 --cloud http://127.0.0.1:8700 --token <operator token> [files or folders]

The server under test must reach the same fake cloud.  Comparison, placeholders and captures are those of
replay.py (see its README); this file only adds the second target, the header names and the starting names.

--peer send Vault's header names and also check the steps marked peer_only --env also replay
scenarios that need the environment variables (environment-fallback) --wif also replay scenarios
that need federation (wif-exchange)
"""

import argparse
import http.client
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import replay  # noqa: E402  # its folder must be in the path first

PEER_HEADERS = {"X-Service-Token": "X-Vault-Token", "X-Service-Wrap-TTL": "X-Vault-Wrap-TTL",
                "X-Service-Request": "X-Vault-Request", "X-Service-Namespace": "X-Vault-Namespace"}


class Target(replay.Target):
    def encode(self, request):
        path, headers, data = super().encode({k: v for k, v in request.items()})
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        if self.vendor_names:
            headers = {PEER_HEADERS.get(k, k): v for k, v in headers.items()}
        return path, headers, data


class Player(replay.Player):
    def __init__(self, service, cloud, names):
        super().__init__(service, names)
        self.service, self.cloud = service, cloud

    def perform(self, step):
        step = dict(step, request=replay.fill(step["request"], self.names))
        self.target = self.cloud if step.get("target") == "cloud" else self.service
        return super().perform(step)


def play(path, options, names):
    with open(path) as handle:
        scenario = json.load(handle)
    if "steps" not in scenario:
        return 0, 0
    needs = scenario.get("needs", [])
    if ("env" in needs and not options.env) or ("wif" in needs and not options.wif):
        print("skip %s" % scenario["scenario"])
        return 0, 0
    player = Player(Target(options.url, options.peer), Target(options.cloud, False), names)
    passed = failed = 0
    for step in scenario["steps"]:
        try:
            answer = player.perform(step)
            problems = replay.compare(step, answer, player.names, options.extra_keys)
            player.capture(step, answer)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            problems = [("", "request failed: %s" % problem, "io")]
        if step.get("peer_only") and not options.peer:
            continue
        if problems:
            failed += 1
            request = step["request"]
            print("FAIL %s/%s  %s %s" % (scenario["scenario"], step["id"], request["method"], request["path"]))
            for pointer, text, _ in problems[: None if options.all else 2]:
                print("       at %s: %s" % (pointer or "(body)", text))
        else:
            passed += 1
    print("%-4s %s: %d passed, %d failed" % ("ok" if not failed else "FAIL", scenario["scenario"], passed, failed))
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description="Replay the recorded scenarios of the directory-identity method.")
    parser.add_argument("paths", nargs="*", default=[os.path.dirname(os.path.abspath(__file__))])
    parser.add_argument("--url", required=True)
    parser.add_argument("--cloud", required=True, help="base URL of the fake cloud")
    parser.add_argument("--token", required=True, help="a token with all permissions")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--env", action="store_true")
    parser.add_argument("--wif", action="store_true")
    parser.add_argument("--wif-issuer", default=None, help="default: <url>/v1/identity/oidc/plugins")
    parser.add_argument("--wif-subject", default="plugin-identity:root:auth:{{accessor}}")
    parser.add_argument("--only", action="append")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--extra-keys", action="store_true", help="allow keys that the recorded data lacks")
    options = parser.parse_args()
    names = {"root_token": options.token, "tenant": "11111111-2222-4333-8444-555555555555",
             "resource": "api://steward-login", "client_id": "c1000000-0000-4000-8000-000000000001",
             "client_secret": "fake-client-secret-1", "sub": "aaaaaaaa-0000-4000-8000-000000000001",
             "sub_b": "aaaaaaaa-0000-4000-8000-000000000002",
             "wif_issuer": options.wif_issuer or options.url.rstrip("/") + "/v1/identity/oidc/plugins",
             "wif_subject": options.wif_subject}
    total = [0, 0]
    for path in replay.collect(options.paths):
        if options.only and not any(o in os.path.basename(path) for o in options.only):
            continue
        one, two = play(path, options, names)
        total[0] += one
        total[1] += two
    print("%d passed, %d failed" % tuple(total))
    return 0 if total[1] == 0 and total[0] else 1


if __name__ == "__main__":
    sys.exit(main())
