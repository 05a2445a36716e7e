"""Handlers whose module is imported when the first of them is called.

The tables of routes hold every handler, and few daemons ever call them all. A table imports its
modules for the eyes of type checkers (`if TYPE_CHECKING:`), and takes them from here when it runs.
"""

from collections.abc import Callable
from functools import cached_property
from importlib import import_module


class LateHandler:
    """A function of a module that is imported when it is called."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *arguments: object) -> object:
        """Return what the function returns."""
        return self.function(*arguments)

    @cached_property
    def function(self) -> Callable[..., object]:
        """Return the function itself."""
        function: Callable[..., object] = getattr(import_module(self._module), self._name)
        return function


class LateModule:
    """A module, each of whose functions imports it when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> LateHandler:
        """Return a function of the module; that it exists is for type checkers to find out."""
        return LateHandler(self._name, name)


def original(handler: Callable[..., object]) -> Callable[..., object]:
    """Return the handler itself, also of one that is late."""
    return handler.function if isinstance(handler, LateHandler) else handler
