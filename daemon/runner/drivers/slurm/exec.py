"""An exec session in a cluster task: a step of its job, run through a local `srun`."""

import re
from collections.abc import Sequence

from daemon.runner.drivers.local_exec import PassedSession

# Messages that `srun --quiet` prints for a step with a nonzero exit status.
_SAID = re.compile(rb"srun: error: [^\n]*: task \d+: (?:Exited with exit code|[A-Z])[^\n]*\n")
_LONGEST = 512  # maximum bytes of such a line


class SlurmExec:
    """An exec session in a cluster task. It removes the messages of `srun` from the output."""

    def __init__(self, inner: PassedSession) -> None:
        self._inner = inner
        self._rest = b""
        self.write, self.end_input = inner.write, inner.end_input
        self.resize, self.kill = inner.resize, inner.kill
        self.wait, self.close = inner.wait, inner.close

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs."""
        return self._inner.outputs

    async def read(self, output: str) -> bytes:
        """Return the next output of the command; empty at the end."""
        if output == "stdout":
            return await self._inner.read(output)
        while data := await self._inner.read(output):
            filtered = _SAID.sub(b"", self._rest + data)
            # The start of a possible message is held back until the line is complete.
            start = filtered.rfind(b"srun: error: ")
            keep = start if start >= 0 and len(filtered) - start < _LONGEST else len(filtered)
            chunk, self._rest = filtered[:keep], filtered[keep:]
            if chunk:
                return chunk
        chunk, self._rest = _SAID.sub(b"", self._rest + b"\n").removesuffix(b"\n"), b""
        return chunk
