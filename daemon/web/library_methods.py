"""Overrides of private methods of libraries. A new library version may rename such methods.

`private_override` marks such a method. `checked` fails the import of the class, and so of the HTTP
server, when the base class does not have the method. Otherwise the library would silently ignore
the override.
"""

from collections.abc import Callable
from typing import Any, TypeVar

_MARK = "_is_private_override"
_Class = TypeVar("_Class", bound=type)
_Method = TypeVar("_Method", bound=Callable[..., Any])


class MethodGone(ImportError):
    """A library no longer has a method."""


def private_override(method: _Method) -> _Method:
    """Mark a method that overrides a private method of a library."""
    setattr(method, _MARK, True)
    return method


def checked(cls: _Class) -> _Class:
    """Check that the first base class of a class has each method marked with `private_override`.

    Raises `MethodGone`.
    """
    base = cls.__bases__[0]
    for name, member in vars(cls).items():
        if getattr(member, _MARK, False) and not hasattr(base, name):
            library = base.__module__.partition(".")[0]
            raise MethodGone(
                f"this version of {library} has no {base.__qualname__}.{name}, which Steward "
                f"overrides: install the version of {library} that pyproject.toml specifies"
            )
    return cls
