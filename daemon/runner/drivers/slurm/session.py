"""A command inside a task of a cluster: a step of its job, which we hold by a child of our own."""

import re
from collections.abc import Sequence

from daemon.runner.drivers.session import LocalSession

# What `srun` says of a step that has not ended with 0, also when it is to be quiet.
_SAID = re.compile(rb"srun: error: [^\n]*: task \d+: (?:Exited with exit code|[A-Z])[^\n]*\n")
_LONGEST = 512  # bytes of such a line


class StepSession:
    """The conversation, without what the step's own client has to say in the end."""

    def __init__(self, inner: LocalSession) -> None:
        self._inner = inner
        self._rest = b""
        self.write, self.end_input = inner.write, inner.end_input
        self.resize, self.kill = inner.resize, inner.kill
        self.wait, self.close = inner.wait, inner.close

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of what can be read."""
        return self._inner.outputs

    async def read(self, output: str) -> bytes:
        """Return what the command has written next; nothing at the end."""
        if output == "stdout":
            return await self._inner.read(output)
        while data := await self._inner.read(output):
            known = _SAID.sub(b"", self._rest + data)
            # The beginning of such a line is kept until it is known what it becomes.
            start = known.rfind(b"srun: error: ")
            keep = start if start >= 0 and len(known) - start < _LONGEST else len(known)
            said, self._rest = known[:keep], known[keep:]
            if said:
                return said
        said, self._rest = _SAID.sub(b"", self._rest + b"\n").removesuffix(b"\n"), b""
        return said
