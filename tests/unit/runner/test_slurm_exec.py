"""The output of exec sessions in cluster tasks, without the messages of `srun`."""

from types import SimpleNamespace
from typing import Any

import pytest

from daemon.runner.drivers.slurm.exec import SlurmExec

MESSAGE = b"srun: error: n1: task 0: Exited with exit code 3\n"


def session(*chunks: bytes) -> SlurmExec:
    """Return a session whose command writes these chunks to each output."""
    rest = {name: list(chunks) for name in ("stdout", "stderr")}

    async def read(output: str) -> bytes:
        return rest[output].pop(0) if rest[output] else b""

    names = ("write", "end_input", "resize", "kill", "wait", "close")
    inner: Any = SimpleNamespace(read=read, outputs=["stdout", "stderr"], **dict.fromkeys(names))
    return SlurmExec(inner)


async def test_standard_output_is_not_filtered() -> None:
    found = session(MESSAGE, b"x")
    assert [await found.read("stdout") for _ in range(3)] == [MESSAGE, b"x", b""]
    assert found.outputs == ["stdout", "stderr"]


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([b"a\n", MESSAGE, b"b\n"], b"a\nb\n"),
        ([b"a\n" + MESSAGE[:20], MESSAGE[20:]], b"a\n"),
        ([MESSAGE.removesuffix(b"\n")], b""),
        ([b"srun: error: none\n"], b"srun: error: none\n"),
        ([b"srun: error: " + b"x" * 600, b"y"], b"srun: error: " + b"x" * 600 + b"y"),
    ],
)
async def test_messages_of_srun_are_removed_from_errors(chunks: list[bytes], shown: bytes) -> None:
    found, read = session(*chunks), b""
    while data := await found.read("stderr"):
        read += data
    assert read == shown
