"""Print the crash tests that failed for a reason other than a timeout.

    crashes.py RESULTS

RESULTS is the XML file with pytest's results. The exit status is 1 if there is such a test. A busy
host can cause a timeout, so packaging/check runs tests with a timeout again. Other failures of
crash tests are final.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree  # noqa: TID251  # pytest wrote the file

TESTS = "tests.crash."
TIME_LIMIT = re.compile(r"([\w.]+\.)?TooSlowError\b")
# The error in the teardown of a test that exceeded its time limit. The limit cancels the test, so
# the test itself can fail with any error.
DEADLINE = "tests.watchdog.TookTooLong"


def broken(results: Path) -> list[str]:
    """Return the crash tests that failed for a reason other than a timeout, with their modules."""
    reasons = defaultdict[str, list[str]](list)  # by test; a teardown has a separate entry
    for case in ElementTree.parse(results).iter("testcase"):  # noqa: S314  # by our own pytest
        if case.get("classname", "").startswith(TESTS):
            name = f"{case.get('classname')}.{case.get('name')}"
            reasons[name] += [
                failure.get("message", "")
                for failure in (*case.iter("failure"), *case.iter("error"))
            ]
    return [
        name
        for name, messages in reasons.items()
        if not any(DEADLINE in message for message in messages)
        and not all(TIME_LIMIT.match(message) for message in messages)
    ]


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(bool(found))
