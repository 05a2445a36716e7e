"""Time until the daemon is ready, and its memory at that time: `python -m bench.ready COMMAND...`.

COMMAND is the program, such as `dist/steward` or `.venv/bin/steward`. At the first start, the
directory where the single-file program unpacks itself is empty. If root runs the script, the
page cache is empty too, and COMMAND runs as another user. The other starts are warm. Each start
uses its own data directory.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STARTS = 8
IDLE = 3.0  # seconds from readiness to the measurement of memory


def start(command: list[str], place: Path, number: int) -> tuple[float, float]:
    """Start the daemon; return the seconds until it is ready, and its memory (PSS, MiB)."""
    words = [*command, "agent", "--dev", "--port", "0", "--data-dir", str(place / str(number))]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "CACHE_DIRECTORY": str(place / "c"),
    }
    began = time.monotonic()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables
    ) as one:
        assert one.stdout is not None
        while b"ready" not in one.stdout.readline():
            assert one.poll() is None
        took = time.monotonic() - began
        time.sleep(IDLE)
        rollup = Path(f"/proc/{one.pid}/smaps_rollup").read_text()
        (pss,) = re.findall(r"^Pss: *(\d+)", rollup, re.MULTILINE)
        one.send_signal(signal.SIGTERM)
    return took, int(pss) / 1024


def main(command: list[str]) -> None:
    """Measure a cold start and several warm starts, and print the results."""
    place = Path(tempfile.mkdtemp(prefix="steward-start-"))
    try:
        if os.geteuid() == 0:
            Path("/proc/sys/vm/drop_caches").write_text("3")
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
            os.chown(place, 65534, 65534)
        (cold, _), *warm = [start(command, place, number) for number in range(STARTS)]
        times, memory = sorted(took for took, _ in warm), sorted(pss for _, pss in warm)
        print(
            f"first {cold:.2f} s; then {times[len(times) // 2]:.2f} s [{times[0]:.2f}]; "
            f"{memory[len(memory) // 2]:.0f} MiB"
        )
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1:])
