"""Random messages to launchers. No message may create a file or directory.

    python -m bench.launcher_fuzz [NUMBER] [SEED]

docs/reliability.md has the results.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.parts.launcher.random_messages import fuzz


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 26
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        ended = fuzz(random.Random(seed), Path(directory), number)
    print(
        f"{number} messages in {time.monotonic() - began:.0f} s: "
        f"{ended} stopped a launcher, and no message created a file"
    )


if __name__ == "__main__":
    main()
