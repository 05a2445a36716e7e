"""CPU cost of authentication and authorization, with one token and with many.

python -m bench.tokens
"""

import resource
import tempfile
import time
from pathlib import Path

import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore, open_tokens
from daemon.clock import SystemClock
from storage.queries import policies
from storage.queries import tokens as rows
from storage.records.acl import Policy, Token
from storage.store import Store, open_store

RULES = "".join(f'namespace "team-{n}" {{ policy = "write" }}\n' for n in range(20)) + "".join(
    f'path "secret/team-{n}/*" {{ capabilities = ["read"] }}\n' for n in range(20)
)
MANY = 100_000
ROUNDS = 20_000


def resident_mib() -> float:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def microseconds(tokens: TokenStore, secret: str) -> float:
    """Return the CPU microseconds per request: one token lookup and two capability checks."""
    begun = time.process_time()
    for _ in range(ROUNDS):
        grant = tokens.resolve(secret).grant
        assert grant.may("team-7", "submit-job")
        assert grant.permission("secret/team-7/x") is not None
    return (time.process_time() - begun) / ROUNDS * 1e6


async def fill(store: Store, tokens: TokenStore, count: int) -> None:
    now, step = SystemClock().now(), 1000
    for first in range(0, count, step):
        await store.write(
            lambda tx, first=first: [
                rows.add(tx, Token(accessor=f"{n}", policies=("staff",), created_at=now), b"%d" % n)
                for n in range(first, first + step)
            ]
        )


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        async with (
            open_store(Path(directory), cluster_id="bench", now=0) as store,
            open_tokens(store, SystemClock(), EnvelopeCipher({1: bytes(32)}), asks=True) as tokens,
        ):
            await store.write(lambda tx: policies.put(tx, Policy(name="staff", rules=RULES)))
            issued = await tokens.issue(Token(accessor="me", policies=("staff",), created_at=1))
            microseconds(tokens, issued.secret)
            print(f"{1:>7} tokens: {microseconds(tokens, issued.secret):5.1f} µs per request")
            before = resident_mib()
            await fill(store, tokens, MANY)
            cost = microseconds(tokens, issued.secret)
            grown = resident_mib() - before
            print(f"{MANY:>7} tokens: {cost:5.1f} µs per request, {grown:.1f} MiB more memory")


if __name__ == "__main__":
    trio.run(main)
