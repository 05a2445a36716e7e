"""CPU time to parse and evaluate job files, compared with a fixed loop in Python.

    python -m bench.job_files

The limits apply to a host with two cores on which the fixed loop takes about 55 ms. On a slower or
busier host, the limits are increased in proportion. Nomad's results come from the same host. They
are the times of requests over a connection that stays open.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from daemon.jobspec.complete import complete
from daemon.jobspec.hcl.format import formatted
from daemon.jobspec.hcl.parser import read_body
from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.hcl.source import SourceText
from daemon.jobspec.parse import JobFile, parse_job

ROOT = Path(__file__).parent.parent
RUNS = 30
LOOP = 55.0  # duration of the fixed loop in ms, on the host where the limits were set
GROUPS = 23  # groups of the large file, which has 1,025 lines

HEAD = """variable "version" {
  default = "1.2.3"
}
variable "memory" {
  type    = number
  default = 128
}
locals {
  zone = "eu-${var.version}"
}
job "bench" {
  datacenters = ["dc1"]
"""
GROUP = """
  group "api-@" {
    count = 2
    network {
      mode = "bridge"
      port "http" {
        to = 8080
      }
      port "metrics" {}
    }
    service {
      name = "api-@"
      port = "http"
      tags = ["team-a", "v${var.version}", local.zone]
      check {
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
      }
    }
    task "server" {
      driver = "docker"
      config {
        image = "registry.example.org/api:${var.version}"
        args  = ["--listen", "${NOMAD_ADDR_http}", upper(local.zone)]
      }
      env {
        LOG_LEVEL = "info"
        PEERS     = join(",", [for n in range(3) : "peer-${n}"])
      }
      template {
        destination = "local/app.conf"
        data        = <<-EOT
          listen = ${NOMAD_PORT_http}
          zone   = ${local.zone}
        EOT
      }
      resources {
        cpu    = 500
        memory = var.memory * 2
      }
    }
  }
"""


def text(groups: int) -> str:
    return HEAD + "".join(GROUP.replace("@", str(number)) for number in range(groups)) + "}\n"


def cpu(work: Callable[[], object]) -> float:
    """Return the median CPU time of a function in milliseconds."""
    taken = []
    for _ in range(RUNS):
        begun = time.process_time()
        work()
        taken.append(1000 * (time.process_time() - begun))
    return statistics.median(taken)


def loop() -> int:
    total = 0
    for number in range(500_000):
        total += number * number % 7
    return total


def imported() -> float:
    """Return the CPU time in ms to import the parser when the routes are already imported."""
    measure = (
        "import time, daemon.api.routes; begun = time.process_time(); import daemon.jobspec.parse; "
        "print(1000 * (time.process_time() - begun))"
    )
    runs = [
        float(subprocess.check_output([sys.executable, "-c", measure], cwd=ROOT)) for _ in range(5)
    ]
    return statistics.median(runs)


def main() -> int:
    outside = FunctionEnvironment(random=bytes)
    measured = cpu(loop)
    slower = max(1.0, measured / LOOP)  # on a faster host the limits stay the same
    print(f"{'fixed loop in Python':<44} {measured:8.2f} ms (limits times {slower:.2f})")
    missed = 0
    for groups, limit, peer in ((1, 4.0, "0.65-1.1"), (GROUPS, 60.0, "13-17")):
        file = JobFile(text=text(groups))
        lines = file.text.count("\n")
        taken = cpu(lambda file=file: parse_job(file, outside))
        verdict = "" if taken <= limit * slower else "  MISSED"
        missed += bool(verdict)
        title = f"{lines} lines, parsed and evaluated"
        print(f"{title:<44} {taken:8.2f} ms (at most {limit:.0f}; Nomad {peer}){verdict}")
        source = SourceText("bench", file.text)
        print(
            f"{'  part of it: parsing the syntax':<44} {cpu(lambda s=source: read_body(s)):8.2f} ms"
        )
        completed = cpu(lambda file=file: complete(parse_job(file, outside)))
        print(f"{'  with the defaults filled in':<44} {completed:8.2f} ms")
        print(f"{'  formatting (job fmt)':<44} {cpu(lambda s=source: formatted(s)):8.2f} ms")
    title = "import at the first use (none at the start)"
    print(f"{title:<44} {imported():8.2f} ms")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
