"""Limits of the host. Benchmarks express their results as shares of these limits."""

import os
import tempfile
import time
from pathlib import Path


def fork_exec_per_s(seconds: float = 1.0) -> float:
    """Return the number of `/bin/true` processes that the host starts and reaps per second."""
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for pid in [os.posix_spawn("/bin/true", ["/bin/true"], {}) for _ in range(4)]:
            os.waitpid(pid, 0)
        count += 4
    return count / (time.perf_counter() - begun)


def fdatasync_per_s(directory: Path, seconds: float = 1.0) -> float:
    """Return how many times per second a page of a file in `directory` can be flushed to disk."""
    with tempfile.TemporaryFile(dir=directory) as file:
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - begun)
