"""Print the crash tests that failed for another reason than a timeout.

    crashes.py RESULTS

RESULTS is the XML file of pytest. The exit status is 1 if there is such a test. A busy host can cause
a timeout, so tests with a timeout run again. Other failures are final.
"""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

TESTS = "tests.crash."
TIME_LIMIT = re.compile(r"([\w.]+\.)?(TooSlowError|TookTooLong)\b")


def broken(results: Path) -> list[str]:
    """Return the tests that failed for another reason than a timeout, each with its module."""
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
