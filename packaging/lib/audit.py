"""Audit the packages of a bill of materials, and the oldest versions that a project allows.

    audit.py PIP_AUDIT BILL PROJECT

The exit status is 0 if no advisory is known, and 1 if there are advisories, which are printed. It
is 69 (UNAVAILABLE in environment.sh) if some packages could not be looked up. For packages that the
advisory service does not know, the exit status of pip-audit itself is 0.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

UNAVAILABLE = 69


def main(program: str, bill: str, project: str) -> int:
    """Audit the shipped packages and the minimum versions; return the exit status.

    The status is 1 for an advisory, even if a query failed. `program` is pip-audit; `bill` and
    `project` are paths.
    """
    results = [
        audit(program, "shipped packages", shipped(json.loads(Path(bill).read_text()))),
        audit(program, "minimum versions", oldest(tomllib.loads(Path(project).read_text()))),
    ]
    return 1 if 1 in results else max(results)


def shipped(bill: dict[str, list[dict[str, str]]]) -> list[str]:
    """Return the packages of a bill of materials as pinned requirements of pip."""
    parts = [component for component in bill["components"] if component["type"] == "library"]
    return [f"{part['name']}=={part['version']}" for part in parts]


def oldest(project: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return the dependencies of a project, each pinned to its oldest allowed version."""
    pinned = [
        re.sub(r"^([\w.-]+)>=([\w.]+)(,<[\w.]+)?$", r"\1==\2", dependency)
        for dependency in project["project"]["dependencies"]
    ]
    if loose := [dependency for dependency in pinned if "==" not in dependency]:
        sys.exit(
            f"pyproject.toml: write {', '.join(loose)} as name>=version or name>=version,<version, "
            "because the minimum version is audited"
        )
    return pinned


def audit(program: str, what: str, pinned: list[str]) -> int:
    """Print the advisories for the pinned packages; return the exit status for this list.

    `what` names the list in messages.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pinned))
        file.flush()
        done = subprocess.run(
            [program, "--requirement", file.name, "--no-deps", "--disable-pip", "--format", "json"],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        answers = json.loads(done.stdout)["dependencies"]
    except ValueError:
        message = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
        print(f"{what}: cannot download advisories: {message[:200]}")
        return UNAVAILABLE
    advisories = [
        f"{answer['name']} {answer['version']}: {each['id']}, fixed in {each['fix_versions']}"
        for answer in answers
        for each in answer.get("vulns", ())
    ]
    answered = sum("vulns" in answer for answer in answers)
    print(f"{what}: looked up {answered} of {len(pinned)} packages", *advisories, sep="\n    ")
    if advisories:
        return 1
    return 0 if answered == len(pinned) else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
