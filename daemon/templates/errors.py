"""Errors of templates, and the limits of rendering.

A template is part of a job, so it can be hostile. Rendering counts each step, each created value
and each nesting level. A template that exceeds a limit fails with an error.
"""

LONGEST = 1024 * 1024  # characters of one value, and of the whole result
DEEPEST = 80  # nesting of blocks, calls and brackets
_MADE_FOR_A_STEP = 32  # created characters or items per step


class TemplateError(ValueError):
    """Parsing or rendering failed. The message contains the position and the reason."""


class UnknownFunction(TemplateError):
    """A template calls a function that does not exist."""

    def __init__(self, position: str, name: str) -> None:
        super().__init__(f'{position}: function "{name}" not defined')
        self.name = name


class TemplateOutputTooLong(TemplateError):
    """Rendering needs more steps than the limit."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"the template takes more than {steps} steps: use fewer iterations")


class StepBudget:
    """The remaining steps of one rendering."""

    def __init__(self, steps: int) -> None:
        self._steps = self._left = steps
        self.depth = 0  # current nesting of blocks and calls

    def spend(self, steps: int = 1) -> None:
        """Subtract steps from the budget. Raises `TemplateOutputTooLong`."""
        self._left -= steps
        if self._left < 0:
            raise TemplateOutputTooLong(self._steps)

    def make(self, length: int) -> None:
        """Subtract the cost of a value before it is created.

        `length` is the number of characters or items of the value. Raises `TemplateError` if the
        value is too large.
        """
        if length > LONGEST:
            raise TemplateError(f"a value or text has more than {LONGEST} characters")
        self.spend(1 + length // _MADE_FOR_A_STEP)

    def charge(self, value: object) -> None:
        """Subtract the cost of processing a value. Raises `TemplateOutputTooLong`."""
        if isinstance(value, str):
            self.spend(len(value) // _MADE_FOR_A_STEP)

    def enter(self) -> None:
        """Enter a nested block or call. Raises `TemplateError` if the nesting is too deep."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise TemplateError(
                f"blocks, templates or brackets are nested more than {DEEPEST} deep"
            )

    def exit_block(self) -> None:
        """Leave a block or call."""
        self.depth -= 1
