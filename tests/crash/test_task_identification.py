"""Task identification uses more than the pid."""

import os
import subprocess
from pathlib import Path

from tests.crash.ledger import Starts


def is_sleeping(process: Path) -> bool:
    name = (process / "comm").read_text()
    return name == "sleep\n" and bool((process / "environ").read_bytes())


def test_process_with_a_reused_task_number_is_not_the_task(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    environment = {**os.environ, "NOMAD_ALLOC_ID": "mine"}
    with subprocess.Popen(["/bin/sleep", "600"], env=environment) as task:
        try:
            starts.path.write_text(f"mine {task.pid}\nanother {task.pid}\n")
            process = Path("/proc", str(task.pid))
            while not is_sleeping(process):  # the process name is set shortly after the fork
                os.sched_yield()
            assert starts.alive() == {"mine"}
        finally:
            task.kill()
