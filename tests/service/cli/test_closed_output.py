"""The command line with an output that accepts nothing: an error line, and an exit status."""

import shlex
import sys
from pathlib import Path

import pytest
import trio

from tests.service.daemon import environment, open_steward


@pytest.mark.parametrize("words", [("job", "status"), ("job", "status", "-json"), ("version",)])
@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
async def test_full_standard_output_causes_no_traceback(
    tmp_path: Path, words: tuple[str, ...], output: str
) -> None:
    async with open_steward(tmp_path, "--dev") as steward:
        command = shlex.join([sys.executable, "-m", "daemon", *words])
        done = await trio.run_process(
            ["/bin/sh", "-c", f"{command} {output}"],
            capture_stderr=True,
            check=False,
            env=environment(STEWARD_ADDR=steward.address),
        )
    told = done.stderr.decode()
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    if output == ">/dev/full":
        assert done.returncode == 1
        assert "No space left on device" in told
        assert told.count("\n") == 1
