"""Throughput of a log that is masked, compared with the same log without masks.

    PYTHONPATH=. python -m bench.masked_logs [--megabytes 256] [--secrets 20]

The benchmark starts a daemon with access control. A task whose secrets are in a variable writes a
log. A client with `read-raw-logs` and a client without it read the log alternately.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import trio

from daemon.config.data_directory import alloc_dir
from tests.service.daemon import Steward, open_steward
from tests.service.test_acl import SECRET, new_token

_TEXT = (
    "import os,random;r=random.Random(1);"
    "b=b''.join(b'2026-11-26T12:00:00Z level=info msg=request path=/v1/job/%d ms=%d id=%x\\n'"
    " % (r.randrange(1000), r.randrange(1000), r.getrandbits(64)) for _ in range(13000))[:1<<20];"
    "[os.write(1,b) for _ in range(MEGABYTES)];import time;time.sleep(600)"
)


def job(megabytes: int) -> object:
    """Return a job that reads a variable into a template, and writes a log."""
    template = "{{ with nomadVar `nomad/jobs/job` }}{{ .s0 }}{{ end }}"
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {
            "command": "/usr/bin/env",
            "args": ["python3", "-c", _TEXT.replace("MEGABYTES", str(megabytes))],
        },
        "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": megabytes},
        "Templates": [{"EmbeddedTmpl": template, "DestPath": "secrets/s"}],
    }
    group = {"Name": "g", "Tasks": [task], "EphemeralDisk": {"SizeMB": 3 * megabytes}}
    return {"ID": "job", "Type": "batch", "TaskGroups": [group]}


async def seconds(steward: Steward, token: str, path: str, size: int) -> float:
    """Return the seconds that a client needs to read the whole log."""
    host, _, port = steward.address.removeprefix("http://").rpartition(":")
    request = f"GET {path} HTTP/1.0\r\nX-Nomad-Token: {token}\r\n\r\n"
    began, left = time.perf_counter(), size
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(request.encode())
        while left > 0 and (chunk := await stream.receive_some(1 << 20)):
            left -= len(chunk)
    if left > 0:
        raise SystemExit(f"{left} bytes are missing")
    return time.perf_counter() - began


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--secrets", type=int, default=20)
    options = parser.parse_args()
    size = options.megabytes << 20
    with tempfile.TemporaryDirectory() as directory:
        async with open_steward(Path(directory), "--dev", "--acl") as steward:
            await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
            steward.token = SECRET
            items = {
                f"s{number}": f"Zq{number:02d}-Kf8sLw0pXv3n{number}"
                for number in range(options.secrets)
            }
            await steward.post("/v1/var/nomad/jobs/job", {"Items": items})
            (alloc,) = await steward.run_job(job(options.megabytes))
            log = alloc_dir(steward.data_dir) / alloc["ID"] / "alloc/logs/main.stdout.0"
            while log.stat().st_size < size:  # noqa: ASYNC110  # a file gives no notification
                await trio.sleep(0.1)
            reader = await new_token(steward, 'namespace "default" { policy = "write" }')
            path = f"/v1/client/fs/logs/{alloc['ID']}?task=main&type=stdout&plain=true"
            ratios = []
            for _ in range(5):
                raw = await seconds(steward, SECRET, path, size)
                masked = await seconds(steward, reader, path, size)
                ratios.append(raw / masked)
                print(
                    f"raw {options.megabytes / raw:,.0f} MiB/s, masked {options.megabytes / masked:,.0f} "
                    f"MiB/s, {raw / masked:.2f} of raw"
                )
            print(f"median {statistics.median(ratios):.2f}; target 0.50")


if __name__ == "__main__":
    trio.run(main)
