"""A start fails when a library has lost a private method that the daemon overrides."""

import inspect

import pytest

from daemon.web import http_connection
from daemon.web.library_methods import MethodGone, checked, private_override


class Base:
    def _present(self) -> None:
        """Do nothing."""


def test_override_of_an_existing_method_is_accepted() -> None:
    class Present(Base):
        @private_override
        def _present(self) -> None:
            """Do nothing else."""

    assert checked(Present) is Present


def test_an_override_of_a_missing_method_fails_with_its_name() -> None:
    class Gone(Base):
        @private_override
        def _gone(self) -> None:
            """Do nothing."""

    with pytest.raises(MethodGone, match=r"tests has no Base\._gone"):
        checked(Gone)


def test_each_overridden_private_library_method_is_marked() -> None:
    found = {}
    for name, cls in vars(http_connection).items():
        if not inspect.isclass(cls) or cls.__module__ != http_connection.__name__:
            continue
        base = cls.__bases__[0]
        found |= {
            f"{name}.{member}": getattr(function, "_is_private_override", False)
            for member, function in vars(cls).items()
            if member.startswith("_") and not member.startswith("__") and callable(function)
            if hasattr(base, member) and base is not object
        }
    assert len(found) >= 5
    assert all(found.values()), found
