"""What can go wrong with a template, and the bounds within which it is filled in.

A template comes with a job, so it may be hostile: each step, each value that is made and each
nesting is counted, and a template that needs more than there is ends with an error.
"""

LONGEST = 1024 * 1024  # characters of one value, and of the whole result
DEEPEST = 80  # blocks, calls and brackets inside each other
_MADE_FOR_A_STEP = 32  # characters that cost as much as one step


class Fault(ValueError):
    """A template cannot be read or filled in; the text says where and why."""


class TooLong(Fault):
    """Filling in takes more steps than it may."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"the template takes more than {steps} steps: let it loop less")


class Budget:
    """The steps that filling in a template may take."""

    def __init__(self, steps: int) -> None:
        self._steps = self._left = steps
        self.depth = 0  # of blocks, calls and brackets at the moment

    def spend(self, steps: int = 1) -> None:
        """Count steps. Raises `TooLong`."""
        self._left -= steps
        if self._left < 0:
            raise TooLong(self._steps)

    def make(self, length: int) -> None:
        """Count a value of so many characters or items, before it is made. Raises `Fault`."""
        if length > LONGEST:
            raise Fault(f"a value or text has more than {LONGEST} characters")
        self.spend(1 + length // _MADE_FOR_A_STEP)

    def look_at(self, value: object) -> None:
        """Count a value that is worked on: a long text takes longer. Raises `TooLong`."""
        if isinstance(value, str):
            self.spend(len(value) // _MADE_FOR_A_STEP)

    def enter(self) -> None:
        """Count one more block or call inside another. Raises `Fault`."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise Fault(f"blocks, templates or brackets are nested more than {DEEPEST} deep")

    def leave(self) -> None:
        """Leave a block or call."""
        self.depth -= 1
