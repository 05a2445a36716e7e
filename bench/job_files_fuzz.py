"""Any text is answered: by a job or by located errors, soon, and never by a defect.

python bench/job_files_fuzz.py [COUNT] [SEED]
"""

import json
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from daemon.jobspec.complete import complete  # noqa: E402
from daemon.jobspec.hcl.scope import Outside  # noqa: E402
from daemon.jobspec.hcl.source import Faulty  # noqa: E402
from daemon.jobspec.parse import JobFile, parse_job  # noqa: E402
from storage.records.codec import encode  # noqa: E402
from tests.unit.jobspec.hcl.soup import texts  # noqa: E402

SLOW = 1.0  # seconds


def corpus() -> list[str]:
    golden = ROOT / "tests/wire/golden/hcl"
    files = [path.read_bytes().decode() for path in sorted(golden.glob("*.hcl"))]
    listed = json.loads((golden / "expressions.json").read_text())
    return files + [f"{listed['before']}{one['expr']}{listed['after']}" for one in listed["cases"]]


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    jobs = defects = 0
    slowest = 0.0
    begun = time.process_time()
    for text in texts(seed, count, corpus()):
        started = time.process_time()
        try:
            encode(complete(parse_job(JobFile(text=text), Outside(random=bytes))))
            jobs += 1
        except Faulty as error:
            encode(error.explained())
        except BaseException:
            defects += 1
            print(f"\n{text!r}")
            traceback.print_exc(limit=-3)
            if defects > 5:
                break
        slowest = max(slowest, time.process_time() - started)
    took = time.process_time() - begun
    print(f"{count} texts in {took:.0f} s: {jobs} jobs, {defects} defects, slowest {slowest:.3f} s")
    return 1 if defects or slowest > SLOW else 0


if __name__ == "__main__":
    sys.exit(main())
