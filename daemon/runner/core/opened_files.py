"""Files that the launcher has opened for the daemon."""

import os


class OpenedFile:
    """An open file; garbage collection closes it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def is_gone(self) -> bool:
        """Return whether the file has no directory entry any more."""
        return not os.fstat(self.descriptor).st_nlink

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all bytes of `data`. Raises `OSError`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]
