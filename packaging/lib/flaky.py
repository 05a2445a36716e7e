"""Count the tests that failed in a parallel run and passed alone.

    flaky.py FAILED COUNTS COMMIT

FAILED is the file in which pytest stores the tests that failed last. COUNTS has a line for each
flaky test: its number of failures, the commit of the last failure, and its name. The script updates
COUNTS in the working tree; commit the change with your next commit. Several runs of one commit
count once. When you fix the cause, remove the line. The exit status is 1 at the third failure of a
test.
"""

import json
import sys
from pathlib import Path

MOST = 2  # permitted failures of a test


def main(failed: Path, file: Path, commit: str) -> int:
    """Increment the counts, print them, and return the exit status."""
    lines = file.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    sightings = {}
    for line in lines[len(head) :]:
        count, last_commit, name = line.split(" ", 2)
        sightings[name] = (int(count), last_commit)
    seen = sorted(json.loads(failed.read_text()))
    for name in seen:
        count, last_commit = sightings.get(name, (0, ""))
        sightings[name] = (count + (last_commit != commit), commit)
        print(f"flaky test, failures so far: {sightings[name][0]}: {name}")
    counted = [
        f"{count} {commit_seen} {name}" for name, (count, commit_seen) in sorted(sightings.items())
    ]
    file.write_text("\n".join([*head, *counted, ""]))
    return int(any(sightings[name][0] > MOST for name in seen))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
