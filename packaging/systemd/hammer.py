"""A client that sends requests continuously, each with a new connection: `hammer.py PORT STOP`.

The client stops when the file STOP exists. Then it prints the number of responses, the failed
requests, and the longest response time in seconds.
"""

import http.client
import json
import sys
import time
from pathlib import Path

PATIENCE = 300  # seconds; a slower response counts as lost


def ask(port: int) -> str:
    """Send a request, and return its error; empty if it succeeded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/v1/status/leader")
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
    return "" if answer.status == 200 else f"status {answer.status}"


def main(port: int, stop: Path) -> None:
    """Send requests until the file `stop` exists; print the counts."""
    answers, lost, longest = 0, [], 0.0
    while not stop.exists():
        began = time.monotonic()
        if fault := ask(port):
            lost.append(fault)
        else:
            answers += 1
        longest = max(longest, time.monotonic() - began)
    print(json.dumps({"answers": answers, "lost": lost, "longest": round(longest, 2)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
