"""The cost of a frequent read, as a number of function calls, because CPU times vary."""

import sys
from collections import Counter
from types import FrameType

from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.parts.web.test_dispatcher import opened

MOST = 150  # calls; on 2026-11-29, a read made 171 of them before it was made cheaper
REPEATS = 10


async def test_repeated_read_makes_few_calls(store: Store) -> None:
    _, ask = opened(parts_of(store, asks=False))
    await ask("GET", "/v1/show")
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        for _ in range(REPEATS):
            await ask("GET", "/v1/show")
    finally:
        sys.setprofile(None)
    assert calls.total() / REPEATS <= MOST, calls.most_common()
