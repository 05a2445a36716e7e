"""Print the crash tests that failed for a reason other than a timeout.

    crashes.py RESULTS

RESULTS is the XML file with pytest's results. The exit status is 1 if there is such a test. A busy
host can cause a timeout, so packaging/check runs tests with a timeout again. Other failures of
crash tests are final.
"""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

TESTS = "tests.crash."
TIME_LIMIT = re.compile(r"([\w.]+\.)?(TooSlowError|TookTooLong)\b")


def broken(results: Path) -> list[str]:
    """Return the crash tests that failed for a reason other than a timeout, with their modules."""
    cases = ElementTree.parse(results).iter("testcase")  # noqa: S314  # by our own pytest
    ours = [case for case in cases if case.get("classname", "").startswith(TESTS)]
    return [
        f"{case.get('classname')}.{case.get('name')}"
        for case in ours
        for found in (*case.iter("failure"), *case.iter("error"))
        if not TIME_LIMIT.match(found.get("message", ""))
    ]


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(bool(found))
