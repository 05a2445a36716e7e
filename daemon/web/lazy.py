"""Lazy import of handlers.

The tables of routes name every handler, but few daemons call all handlers. A table imports the
modules of handlers for type checkers only (`if TYPE_CHECKING:`), and uses this module at runtime.
Before a caller calls a handler, it imports the handler's module with `import_handler`, because an
import can take 100 ms of the event loop.
"""

import sys
from collections.abc import Callable
from functools import cached_property
from importlib import import_module

import trio


class LazyHandler:
    """A function whose module is imported at its first call."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *arguments: object) -> object:
        """Call the function."""
        return self.function(*arguments)

    @cached_property
    def function(self) -> Callable[..., object]:
        """Return the function. The first use imports its module."""
        function: Callable[..., object] = getattr(import_module(self._module), self._name)
        return function

    @property
    def is_missing(self) -> bool:
        """Return whether a call would import the module, or wait for its import."""
        if "function" in vars(self):
            return False
        spec = getattr(sys.modules.get(self._module), "__spec__", None)
        return spec is None or getattr(spec, "_initializing", False)


class LazyModule:
    """A module that is imported at the first call of one of its functions."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> LazyHandler:
        """Return a function of the module; only type checkers verify that it exists."""
        return LazyHandler(self._name, name)


def unwrap_handler(handler: Callable[..., object]) -> Callable[..., object]:
    """Return the function of a handler; if the handler is lazy, import its module."""
    return handler.function if isinstance(handler, LazyHandler) else handler


async def import_handler(handler: Callable[..., object]) -> None:
    """Import the module of a handler in a thread, unless it is imported."""
    if isinstance(handler, LazyHandler) and handler.is_missing:
        await trio.to_thread.run_sync(unwrap_handler, handler)
