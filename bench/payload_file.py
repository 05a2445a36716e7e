"""Memory of the daemon during the upload of an input file of 1 GiB that is interrupted ten times.

    PYTHONPATH=. python -m bench.payload_file [--megabytes 1024] [--kills 10]

The benchmark starts a daemon. `steward job dispatch --file` is killed with SIGKILL several times,
each time after it has sent a further share of the file. Then it is started again and runs to its
end. The task computes the digest of the file that it gets.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from bench.limits import fdatasync_per_s, fork_exec_per_s
from tests.service.daemon import Steward, environment, open_steward

MIB = 1024 * 1024
JOB = {
    "ID": "sum",
    "Type": "batch",
    "ParameterizedJob": {},
    "TaskGroups": [
        {
            "Name": "g",
            "EphemeralDisk": {"SizeMB": 3000},
            "Tasks": [
                {
                    "Name": "main",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/sh", "args": ["-c", "sha256sum < local/in"]},
                    "Artifacts": [{"GetterSource": "payload://in", "RelativeDest": "local/"}],
                }
            ],
        }
    ],
}


def memory(pid: int, field: str) -> float:
    """Return a field of `/proc/PID/status` in MiB; `VmHWM` is the peak since `forget_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if field in line) / 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def write_file(path: Path, megabytes: int) -> str:
    chance, digest = random.Random(34), hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(megabytes):
            chunk = chance.randbytes(MIB)
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


async def received(steward: Steward, digest: str) -> int:
    answer = await steward.request("GET", f"/v1/payload/{digest}")
    return int(answer.json()["Received"]) if answer.is_success else 0


async def upload(steward: Steward, file: Path) -> trio.Process:
    words = ["job", "dispatch", "--detach", "--file", f"in={file}", "sum"]
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", "daemon", *words],
        stdout=subprocess.DEVNULL,
        env=environment(STEWARD_ADDR=steward.address),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        print(
            f"the host: {fork_exec_per_s():,.0f} fork+execs per s, "
            f"{fdatasync_per_s(directory):,.0f} fdatasyncs per s, load {os.getloadavg()[0]:.1f}"
        )
        file, size = directory / "input", options.megabytes * MIB
        digest = write_file(file, options.megabytes)
        async with open_steward(directory, "--dev") as steward:
            await steward.register(JOB)
            pid = steward.pid
            before = memory(pid, "VmRSS")
            forget_peak(pid)
            began, ends = time.perf_counter(), []
            for number in range(1, options.kills + 1):
                process = await upload(steward, file)
                limit = size * number // (options.kills + 1)
                while await received(steward, digest) < limit:  # noqa: ASYNC110  # no notification
                    await trio.sleep(0.01)  # short, so that the kill is not late
                process.kill()
                await process.wait()
                ends.append(await received(steward, digest) // MIB)
            assert await (await upload(steward, file)).wait() == 0
            taken = time.perf_counter() - began
            peak = memory(pid, "VmHWM")
            (child,) = [one["ID"] for one in await steward.get("/v1/jobs", prefix="sum/")]
            (alloc,) = await steward.allocations(child.replace("/", "%2F"), "complete", "failed")
            got = (await steward.log_of(alloc["ID"], "main")).split()[:1]
            print(f"killed after {', '.join(map(str, ends))} MiB; uploaded in {taken:.1f} s")
            print(f"digest in the task: {'the same' if got == [digest] else 'WRONG'}")
            print(
                f"memory of the daemon: {before:.1f} MiB before, at most {peak:.1f} during the "
                f"uploads (+{peak - before:.1f}; target: at most 16 more), at most "
                f"{memory(pid, 'VmHWM'):.1f} until the end of the task"
            )


if __name__ == "__main__":
    trio.run(main)
