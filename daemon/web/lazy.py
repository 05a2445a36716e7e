"""Lazy import of handlers.

The tables of routes name every handler, but few daemons call them all. A table imports its modules
for type checkers only (`if TYPE_CHECKING:`), and uses this module at runtime.
"""

from collections.abc import Callable
from functools import cached_property
from importlib import import_module


class LazyHandler:
    """A function whose module is imported at its first call."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *arguments: object) -> object:
        """Call the function."""
        return self.function(*arguments)

    @cached_property
    def function(self) -> Callable[..., object]:
        """Return the function itself."""
        function: Callable[..., object] = getattr(import_module(self._module), self._name)
        return function


class LazyModule:
    """A module that is imported at the first call of one of its functions."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> LazyHandler:
        """Return a function of the module; only type checkers verify that it exists."""
        return LazyHandler(self._name, name)


def unwrap_handler(handler: Callable[..., object]) -> Callable[..., object]:
    """Return the handler itself, even if it is lazy."""
    return handler.function if isinstance(handler, LazyHandler) else handler
