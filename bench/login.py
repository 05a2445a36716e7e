"""Logins that need only an identity token: rate, cost per login, and responses to forged tokens.

python -m bench.login [--seconds 10] [--forged 20000]

A minimal server on the same framework (hypercorn, quart-trio) serves as reference. It only reads
the body, checks the signature and writes a row in a group commit. The difference between the two
servers is Steward's overhead.
"""

import argparse
import json
import multiprocessing
import os
import random
import sqlite3
import tempfile
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import trio

from bench.raw_client import exchange
from tests.fakes import fakecloud
from tests.wire.login import CLIENT_ID, RESOURCE, URLS, bootstrap, cloud
from tests.wire.scenarios import daemon

PRINCIPAL = "c1000000-0000-4000-8000-0000000000bb"
TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def pid_listening_at(url: str) -> int:
    """Return the ID of the process that listens on an address."""
    port = int(url.rpartition(":")[2])
    inode = next(
        fields[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(f":{port:04X}") and fields[3] == "0A"
    )
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink().name == f"socket:[{inode}]":
                return int(link.parts[2])
        except OSError:
            continue
    raise LookupError(url)


def measure(url: str, path: str, body: bytes, clients: int, seconds: float) -> dict[str, float]:
    """Return the requests per second, the latency in ms, and the server's CPU ms per request.

    `clients` connections send the request concurrently for `seconds`.
    """
    pid, port = pid_listening_at(url), int(url.rpartition(":")[2])
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
    request = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body
    # A first login imports modules, which is not part of the cost of a login.
    httpx.post(f"{url}{path}", content=body, timeout=30).raise_for_status()
    before, began = cpu_of(pid), time.monotonic()
    took = exchange(port, request, clients, seconds)
    lasted, used = time.monotonic() - began, cpu_of(pid) - before
    took.sort()

    def at(share: float) -> float:
        return took[min(int(len(took) * share), len(took) - 1)] * 1000

    return {
        "per s": len(took) / lasted,
        "p50": at(0.5),
        "p95": at(0.95),
        "p99": at(0.99),
        "CPU ms": used / len(took) * 1000,
    }


# --- reference server ---


def bare(connection: Connection, jwks: dict[str, Any], directory: str) -> None:
    """Run the minimal server."""
    from hypercorn.config import Config
    from hypercorn.trio import serve
    from quart import request
    from quart_trio import QuartTrio

    app = QuartTrio("bare")
    key = fakecloud.jwk_public(jwks)
    db = sqlite3.connect(f"{directory}/bare.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE tokens (hash BLOB PRIMARY KEY, document TEXT)")
    waiting: list[tuple[bytes, str, trio.Event]] = []
    arrived = trio.Event()

    async def commit() -> None:
        nonlocal arrived, waiting
        while True:
            await arrived.wait()
            arrived, batch = trio.Event(), waiting
            waiting = []
            db.execute("BEGIN")
            for hashed, document, _ in batch:
                db.execute("INSERT INTO tokens VALUES (?, ?)", (hashed, document))
            await trio.to_thread.run_sync(db.execute, "COMMIT")
            for _, _, done in batch:
                done.set()

    @app.post("/login")
    async def login() -> dict[str, object]:
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        head, payload, signature = json.loads(await request.get_data())["jwt"].split(".")
        raw = urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
        key.verify(raw, f"{head}.{payload}".encode(), PKCS1v15(), SHA256())
        done = trio.Event()
        waiting.append((os.urandom(32), payload, done))
        arrived.set()
        await done.wait()
        return {"auth": {"client_token": "s.x"}}

    async def main() -> None:
        config = Config()
        config.bind = ["127.0.0.1:0"]
        sockets = config.create_sockets()
        config.create_sockets = lambda: sockets
        connection.send(sockets.insecure_sockets[0].getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await serve(app, config)

    trio.run(main)


# --- forged tokens ---


def forge(jwt: str, rng: random.Random) -> str:
    """Return a token without a valid signature."""
    head, payload, signature = jwt.split(".")
    claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    header = json.loads(urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    kind = rng.randrange(9)
    if kind == 0:  # one changed character
        position = rng.randrange(len(jwt))
        return jwt[:position] + chr(rng.randrange(33, 0x2FF)) + jwt[position + 1 :]
    if kind == 1:  # one missing character
        position = rng.randrange(len(jwt))
        return jwt[:position] + jwt[position + 1 :]
    if kind == 2:  # changed claims
        claims[rng.choice(list(claims))] = rng.choice([None, 5, [], {}, "x", 1e300, True])
    elif kind == 3:  # changed header
        header[rng.choice(["alg", "kid", "typ", "crit", "jwk", "jku", "x5c", "b64"])] = rng.choice(
            ["none", "HS256", "", None, 5, [], {"kty": "RSA"}, "\u202e"]
        )
    elif kind == 4:  # a deeply nested claim
        claims["a"] = "@"
        text = json.dumps(claims).replace('"@"', "[" * 2000 + "]" * 2000)
        return f"{head}.{encoded(text)}.{signature}"
    elif kind == 5:  # a huge claim
        claims["a"] = "x" * rng.randrange(100_000)
    elif kind == 6:  # a duplicate claim
        text = json.dumps(claims)[:-1] + f', "oid": "{rng.random()}"}}'
        return f"{head}.{encoded(text)}.{signature}"
    elif kind == 7:  # parts in another order
        parts = [head, payload, signature]
        rng.shuffle(parts)
        return ".".join(parts) if parts != [head, payload, signature] else f"{jwt}."
    else:
        signature = encoded(rng.randbytes(rng.choice([0, 1, 255, 256, 257, 512])))
        return f"{head}.{payload}.{signature}"
    return f"{encoded(json.dumps(header))}.{encoded(json.dumps(claims))}.{signature}"


def encoded(raw: str | bytes) -> str:
    """Return a text or bytes in base64url, without padding."""
    return urlsafe_b64encode(raw.encode() if isinstance(raw, str) else raw).rstrip(b"=").decode()


async def attack(url: str, jwt: str, number: int) -> Counter[int]:
    """Return the number of responses by status for this many forged tokens."""
    chance, statuses = random.Random(1), Counter[int]()
    left = [forge(jwt, chance) for _ in range(number)]
    left = [forged for forged in left if forged != jwt]

    async def one() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            while left:
                body = json.dumps({"role": "dev", "jwt": left.pop()})
                answer = await client.post("/v1/auth/cloudid/login", content=body)
                statuses[answer.status_code] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one)
    return statuses


# --- main ---


def set_up(url: str, token: str) -> None:
    """Enable and configure the mount, and write a role."""
    with httpx.Client(base_url=f"{url}/v1", headers={"X-Service-Token": token}) as client:
        calls = [
            ("sys/auth/cloudid", {"type": "cloudid"}),
            ("auth/cloudid/config", {"tenant_id": fakecloud.TENANT, "resource": RESOURCE}),
            ("auth/cloudid/role/dev", {"bound_service_principal_ids": PRINCIPAL}),
        ]
        for path, body in calls:
            answer = client.post(f"/{path}", json=body)
            assert answer.is_success, answer.text


def show(name: str, clients: int, figures_by_name: dict[str, float]) -> None:
    figures = "  ".join(f"{key} {value:8.2f}" for key, value in figures_by_name.items())
    print(f"{name:<8} {clients} clients: {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--forged", type=int, default=20_000)
    options = parser.parse_args()
    with cloud() as cloud_url, tempfile.TemporaryDirectory() as directory:
        urls = {f"STEWARD_CLOUD_{name.upper()}_URL": cloud_url for name in URLS}
        minted = httpx.post(
            f"{cloud_url}/_control/mint", json={"app": CLIENT_ID, "audience": RESOURCE}
        ).json()["access_token"]
        keys = httpx.get(f"{cloud_url}/{fakecloud.TENANT}/discovery/keys").json()["keys"]
        body = json.dumps({"role": "dev", "jwt": minted}).encode()
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        server = context.Process(target=bare, args=(there, keys[0], directory), daemon=True)
        server.start()
        bare_url = f"http://127.0.0.1:{here.recv()}"
        time.sleep(1)
        with daemon("--acl", environment=urls) as url:
            set_up(url, bootstrap(url))
            for clients in (1, 8):
                ours = measure(url, "/v1/auth/cloudid/login", body, clients, options.seconds)
                least = measure(bare_url, "/login", body, clients, options.seconds)
                show("steward", clients, ours)
                show("bare", clients, least)
                print(
                    f"CPU of a login / CPU of the bare server: {ours['CPU ms'] / least['CPU ms']:.2f}"
                )
            statuses = trio.run(attack, url, minted, options.forged)
            print(f"{sum(statuses.values())} forged tokens: {dict(statuses)}")
            assert 200 not in statuses, "a forged token was accepted"
        server.kill()


if __name__ == "__main__":
    main()
