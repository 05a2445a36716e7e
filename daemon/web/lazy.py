"""Lazy import of handlers.

The tables of routes name every handler, but few daemons call them all. A table imports its modules
for type checkers only (`if TYPE_CHECKING:`), and uses this module at runtime.
"""

from collections.abc import Callable
from functools import cached_property
from importlib import import_module

import trio


class LazyHandler:
    """A function whose module is imported at its first call."""

    def __init__(self, module: str, name: str, *, is_large: bool = False) -> None:
        self._module, self._name, self._is_large = module, name, is_large

    def __call__(self, *arguments: object) -> object:
        """Call the function."""
        return self.function(*arguments)

    @cached_property
    def function(self) -> Callable[..., object]:
        """Return the function itself."""
        function: Callable[..., object] = getattr(import_module(self._module), self._name)
        return function

    @property
    def needs_thread(self) -> bool:
        """Return whether a call would import a large module."""
        return self._is_large and "function" not in vars(self)


class LazyModule:
    """A module that is imported at the first call of one of its functions.

    `is_large` means that it takes more than 5 ms, so that a thread imports it.
    """

    def __init__(self, name: str, *, is_large: bool = False) -> None:
        self._name, self._is_large = name, is_large

    def __getattr__(self, name: str) -> LazyHandler:
        """Return a function of the module; only type checkers verify that it exists."""
        return LazyHandler(self._name, name, is_large=self._is_large)


def unwrap_handler(handler: Callable[..., object]) -> Callable[..., object]:
    """Return the handler itself, even if it is lazy."""
    return handler.function if isinstance(handler, LazyHandler) else handler


async def import_large(handler: Callable[..., object]) -> None:
    """Import the module of a handler in a thread, if it is large and not imported yet."""
    if isinstance(handler, LazyHandler) and handler.needs_thread:
        await trio.to_thread.run_sync(unwrap_handler, handler)
