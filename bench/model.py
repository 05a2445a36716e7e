"""Random sequences of requests to a real daemon, compared with the reference model.

    python -m bench.model [--examples 500] [--steps 50]

See `tests/model`. At the first difference, the script prints the shortest sequence that causes it,
and the exit status is 1.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.model.test_model import compare


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        compare(Path(directory), options.examples, options.steps)
    print(f"{options.examples} sequences of {options.steps} steps: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
