"""What runs is told by more than the number of a process."""

import os
import subprocess
from pathlib import Path

from tests.crash.ledger import Starts


def test_a_process_that_got_the_number_of_a_task_is_not_the_task(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    environment = {**os.environ, "NOMAD_ALLOC_ID": "mine"}
    with subprocess.Popen(["/bin/sleep", "600"], env=environment) as task:
        try:
            starts.path.write_text(f"mine {task.pid}\nanother {task.pid}\n")
            assert starts.alive() == {"mine"}
        finally:
            task.kill()
