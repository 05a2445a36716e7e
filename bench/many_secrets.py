"""Output of 1 GiB with 10,000 secrets, read by a client that must not see the secrets.

    PYTHONPATH=. python -m bench.many_secrets [--jobs 10] [--megabytes 103]

The benchmark starts a daemon with access control. Each job has 1,000 random secrets in a variable,
which is the maximum that the daemon masks for one allocation. The task of the job writes a log in
pieces of irregular sizes. The log contains the secrets unchanged, encoded for URLs, and in base64
at each of the three offsets. A client follows the log while the task writes it. Afterwards, a
client with `read-raw-logs` reads the log, to check that the search finds the secrets.
"""

import argparse
import base64
import os
import random
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import re2
import trio

from bench.limits import fork_exec_per_s
from tests.service.daemon import Steward, open_steward
from tests.service.test_acl import SECRET, new_token

SECRETS = 1000
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=%&?_"
PIECE = 8 * 1024 * 1024
# The task imports no module of Steward. It reads its secrets from the file that its template
# renders.
PROGRAM = """
import base64, os, random, sys
from urllib.parse import quote
chance, left = random.Random(int(sys.argv[1])), int(sys.argv[2]) << 20
secrets = open("secrets/s").read().split()
forms = []
for text in secrets:
    raw = text.encode()
    forms += [raw, quote(text, safe="").encode()]
    forms += [base64.b64encode(b"-" * n + raw + b"-" * (3 - n)) for n in range(3)]
words = [bytes(chance.choices(b"abcdefghijklmnop 0123456789=/", k=chance.randint(1, 20000))) for _ in range(300)]
while left > 0:
    text = bytearray()
    while len(text) < 4 << 20:
        text += chance.choice(words) + chance.choice(forms) + b"\\n"[: chance.randint(0, 1)]
    text, at = text[:left], 0
    left -= len(text)
    while at < len(text):
        at += os.write(1, text[at : at + chance.randint(1, 9973)])
"""


def secret_of(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randint(8, 40)))


def traces_of(secret: str) -> list[bytes]:
    """Return the encoded forms of a secret for which the log is searched.

    The base64 forms omit the characters that also depend on the text around the secret.
    """
    plain = secret.encode()
    encoded = [base64.b64encode(b"-" * n + plain + b"-" * (3 - n))[4:-4] for n in range(3)]
    return [plain, quote(secret, safe="").encode(), *(one for one in encoded if len(one) > 12)]


class Search:
    """A search for secrets in a log that arrives in chunks."""

    def __init__(self, secrets: list[str]) -> None:
        texts = [text for secret in secrets for text in traces_of(secret)]
        options = re2.Options()
        options.max_mem = 1 << 30
        options.encoding = re2.Options.Encoding.LATIN1
        self._pattern = re2.compile(b"|".join(map(re2.escape, texts)), options)
        self._rest, self._overlap = b"", max(map(len, texts))
        self.size = self.found = 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        text = self._rest + chunk
        ends = [match.end() for match in self._pattern.finditer(text)]
        self.found += len(ends)
        self._rest = text[max([len(text) - self._overlap, *ends[-1:]]) :]


def job(job_id: str, number: int, megabytes: int) -> object:
    template = f"{{{{ with nomadVar `nomad/jobs/{job_id}` }}}}{{{{ range .Values }}}}{{{{ . }}}}\n{{{{ end }}}}{{{{ end }}}}"
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {
            "command": "/usr/bin/env",
            "args": ["python3", "-c", PROGRAM, str(number), str(megabytes)],
        },
        "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": megabytes + 1},
        "Templates": [{"EmbeddedTmpl": template, "DestPath": "secrets/s"}],
    }
    group = {"Name": "g", "Tasks": [task], "EphemeralDisk": {"SizeMB": 3 * megabytes}}
    return {"ID": job_id, "Type": "batch", "TaskGroups": [group]}


async def read(steward: Steward, token: str, path: str, search: Search) -> None:
    """Read a log to its end, and pass it to the search."""
    host, _, port = steward.address.removeprefix("http://").rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        request = f"GET {path} HTTP/1.0\r\nX-Nomad-Token: {token}\r\n\r\n"
        await stream.send_all(request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some(4096)
        assert head.startswith(b"HTTP/1.1 200"), head
        text = bytearray(head.partition(b"\r\n\r\n")[2])
        while chunk := await stream.receive_some(1 << 20):
            text += chunk
            if len(text) > PIECE:
                search.add(bytes(text))
                text.clear()
        search.add(bytes(text))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=103)
    options = parser.parse_args()
    chance = random.Random(34)
    print(f"the host: {fork_exec_per_s():,.0f} fork+execs per s, load {os.getloadavg()[0]:.1f}")
    seen = shown = size = 0
    following = 0.0
    with tempfile.TemporaryDirectory() as directory:
        async with open_steward(Path(directory), "--dev", "--acl") as steward:
            await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
            steward.token = SECRET
            reader = await new_token(steward, 'namespace "default" { policy = "write" }')
            for number in range(options.jobs):
                job_id = f"job{number}"
                secrets = [secret_of(chance) for _ in range(SECRETS)]
                items = {f"s{index}": secret for index, secret in enumerate(secrets)}
                await steward.post(f"/v1/var/nomad/jobs/{job_id}", {"Items": items})
                await steward.register(job(job_id, number, options.megabytes))
                (alloc,) = await steward.allocations(job_id, "running", "complete")
                path = f"/v1/client/fs/logs/{alloc['ID']}?task=main&type=stdout&plain=true"
                masked, raw = Search(secrets), Search(secrets)
                began = time.perf_counter()
                await read(steward, reader, f"{path}&follow=true", masked)
                following += time.perf_counter() - began
                await read(steward, SECRET, path, raw)
                assert masked.size == raw.size == options.megabytes << 20, (masked.size, raw.size)
                seen, shown, size = seen + masked.found, shown + raw.found, size + masked.size
                await steward.request("DELETE", f"/v1/job/{job_id}", purge=True)
    print(
        f"{options.jobs * SECRETS:,} secrets in {size >> 20:,} MiB: a reader with read-raw-logs "
        f"sees a secret in {shown:,} places, a reader without it in {seen:,}; the log was followed at "
        f"{(size >> 20) / following:,.0f} MiB/s, including the search"
    )


if __name__ == "__main__":
    trio.run(main)
