"""Nomad's Go client library, driven by tests/clients/go."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.wire.scenarios import bootstrapped, daemon

PROGRAM = Path(__file__).parent / "go"
GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
BUILD_WITHIN, RUN_WITHIN = 600, 100  # seconds; a first build compiles the whole library


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program; skip if Go is missing or the library cannot be fetched."""
    if GO is None:
        pytest.skip("needs Go")
    made = tmp_path_factory.mktemp("go") / "client"
    for words in (["mod", "download"], ["build", "-p", "1", "-o", str(made), "."]):
        done = subprocess.run([GO, *words], cwd=PROGRAM, capture_output=True, timeout=BUILD_WITHIN)
        if done.returncode and words[0] == "mod":
            pytest.skip(f"the library cannot be fetched: {done.stderr.decode()[-200:]}")
        assert done.returncode == 0, done.stderr.decode()
    return made


def test_calls_of_the_go_client_are_answered(program: Path) -> None:
    with daemon("--acl") as url:
        token = bootstrapped(url)["token"]
        done = subprocess.run(
            [program],
            env={**os.environ, "NOMAD_ADDR": url, "NOMAD_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN,
        )
    assert done.returncode == 0, done.stdout + done.stderr
