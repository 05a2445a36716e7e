"""The search for garbage, put off while a thread makes many objects.

The search stops all threads, and what it looks through grows with what is being made: 0.5 s for the
allocations of a node. What a read makes is freed by its counts of references as soon as it ends.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 100  # ends of such work, while other such work goes on, until garbage is looked for

_lock = threading.Lock()
_at_work = _ended = 0


@contextmanager
def put_off() -> Iterator[None]:
    """Look for no garbage while the block runs, in whatever thread."""
    global _at_work, _ended  # the interpreter has one collector
    with _lock:
        _at_work += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _at_work, _ended = _at_work - 1, _ended + 1
            is_due = _ended >= _MOST
            if not _at_work:
                gc.enable()
            if is_due or not _at_work:
                _ended = 0
        if is_due:
            gc.collect(1)
