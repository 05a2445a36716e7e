"""Count the tests that failed in a parallel run and passed alone.

    flaky.py FAILED COUNTS COMMIT

FAILED is the file in which pytest keeps the tests that failed last. COUNTS has a line for each
test: how often it has been seen, at which commit last, and its name. The counts are raised in the
tree, to be committed. Several runs of one commit count once. A line goes when the cause is fixed.
The exit status is 1 if a test was seen for the third time.
"""

import json
import sys
from pathlib import Path

MOST = 2  # times that a test may be seen


def main(failed: Path, file: Path, commit: str) -> int:
    """Raise the counts, print them, and return the exit status."""
    lines = file.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    sightings = {}
    for line in lines[len(head) :]:
        count, at, name = line.split(" ", 2)
        sightings[name] = (int(count), at)
    seen = sorted(json.loads(failed.read_text()))
    for name in seen:
        count, at = sightings.get(name, (0, ""))
        sightings[name] = (count + (at != commit), commit)
        print(f"flaky, seen {sightings[name][0]} times: {name}")
    counted = [f"{count} {at} {name}" for name, (count, at) in sorted(sightings.items())]
    file.write_text("\n".join([*head, *counted, ""]))
    return int(any(sightings[name][0] > MOST for name in seen))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
