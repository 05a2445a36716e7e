"""Handlers whose module is imported at their first call."""

import sys
from collections.abc import Iterator

import pytest

from daemon.web.lazy import LazyModule, unwrap_handler

LATE = "colorsys"  # a module that no other code imports


@pytest.fixture(autouse=True)
def _not_imported() -> Iterator[None]:
    sys.modules.pop(LATE, None)
    yield
    sys.modules.pop(LATE, None)


def test_reference_to_a_handler_does_not_import_its_module() -> None:
    assert callable(LazyModule(LATE).rgb_to_yiq)
    assert LATE not in sys.modules


def test_lazy_handler_returns_the_result_of_its_function() -> None:
    assert LazyModule(LATE).rgb_to_yiq(0, 0, 0) == (0, 0, 0)
    assert LATE in sys.modules


def test_original_of_a_lazy_handler_is_the_function() -> None:
    assert unwrap_handler(LazyModule(LATE).rgb_to_yiq).__name__ == "rgb_to_yiq"
    assert unwrap_handler(len) is len
