"""Reports about known advisories, and about an unreachable source of advisories."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BILL = {
    "components": [
        {"type": "platform", "name": "python", "version": "3.11.7"},
        {"type": "library", "name": "h11", "version": "0.16.0"},
    ]
}
PROJECT = '[project]\ndependencies = ["h11>=0.14"]\n'
HIT = {"id": "PYSEC-1", "fix_versions": ["0.16"]}


@pytest.fixture
def asked(tmp_path: Path):
    """Return an audit with a fake pip-audit that prints these answers about versions of h11."""

    def ask(answers: dict[str, object], project: str = PROJECT) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "pip-audit"
        program.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            "pins = open(sys.argv[2]).read().split()\n"
            f"answers = {answers!r}\n"
            "json.dump({'dependencies': [{'name': 'h11', **answers[one]} for one in pins]}, sys.stdout)\n"
        )
        program.chmod(0o755)
        (tmp_path / "bill").write_text(json.dumps(BILL))
        (tmp_path / "project").write_text(project)
        words = [program, tmp_path / "bill", tmp_path / "project"]
        return subprocess.run(
            [sys.executable, ROOT / "packaging/lib/audit.py", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    return ask


def clean(version: str) -> dict[str, object]:
    return {"version": version, "vulns": []}


def test_bundled_and_oldest_allowed_versions_are_audited(asked) -> None:
    done = asked({"h11==0.16.0": clean("0.16.0"), "h11==0.14": clean("0.14")})
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "shipped packages: looked up 1 of 1 packages",
        "minimum versions: looked up 1 of 1 packages",
    ]


def test_advisory_is_named_and_takes_precedence_over_an_incomplete_audit(asked) -> None:
    hit = {"version": "0.14", "vulns": [HIT]}
    done = asked({"h11==0.16.0": {"skip_reason": "not found"}, "h11==0.14": hit})
    assert done.returncode == 1
    assert "    h11 0.14: PYSEC-1, fixed in ['0.16']" in done.stdout.splitlines()


def test_unknown_package_makes_the_audit_incomplete(asked) -> None:
    done = asked({"h11==0.16.0": clean("0.16.0"), "h11==0.14": {"skip_reason": "not found"}})
    assert done.returncode == 69
    assert "minimum versions: looked up 0 of 1 packages" in done.stdout


def test_unreachable_service_makes_the_audit_incomplete(asked) -> None:
    done = asked({})  # the fake prints nothing and exits with a traceback
    assert done.returncode == 69
    assert "cannot download advisories: KeyError" in done.stdout


def test_a_dependency_without_an_oldest_version_is_refused(asked) -> None:
    done = asked({"h11==0.16.0": clean("0.16.0")}, '[project]\ndependencies = ["h11"]\n')
    assert done.returncode == 1
    assert "write h11 as name>=version" in done.stderr


def test_each_dependency_has_an_oldest_version(asked) -> None:
    done = asked({"h11==0.16.0": clean("0.16.0")}, (ROOT / "pyproject.toml").read_text())
    assert "write" not in done.stderr
