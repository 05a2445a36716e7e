"""Work between queries: limited on the event loop; longer work continues in a thread."""

import threading
from collections.abc import Callable, Iterator

import pytest

from daemon.jobspec.filter import compile_filter
from daemon.matching import regexp
from storage import loop_share
from storage.loop_share import SHARE, LongRead, spend
from storage.read_pool import ReadSnapshot
from storage.records.job import Job
from storage.store import Store
from storage.writer import Transaction


def work(_: ReadSnapshot) -> int:
    """Do slightly more work than the loop permits; return the ID of the last thread."""
    spend(SHARE)
    spend(1)
    return threading.get_ident()


async def test_read_beyond_its_time_share_runs_in_a_thread(store: Store) -> None:
    with pytest.raises(LongRead):
        store.read_short(work)
    assert await store.read_any(work) != threading.get_ident()


async def test_each_read_has_its_own_time_share(store: Store) -> None:
    assert [store.read_short(lambda _: spend(SHARE)) for _ in range(3)] == [None] * 3


async def test_write_beyond_its_time_share_runs_once_in_a_thread(store: Store) -> None:
    def write(tx: Transaction) -> int:
        tx.touch("nodes", "nodes/x")
        return work(tx)

    assert await store.write(write) != threading.get_ident()
    assert await store.write(lambda _: threading.get_ident()) == threading.get_ident()


async def test_work_outside_of_a_read_has_no_limit(store: Store) -> None:
    store.read_short(lambda _: None)
    assert work(store.read(lambda db: db)) == threading.get_ident()


@pytest.mark.parametrize(
    ("text", "meta"),
    [
        ('ID == "web"', 0),
        ("any Meta as one { ID == one }", 2 * SHARE),  # many steps for one object
        ('ID == "web" or ' * 100 + 'ID == "x"', 0),  # a long text
    ],
)
async def test_a_costly_filter_is_evaluated_in_a_thread(store: Store, text: str, meta: int) -> None:
    document = {"ID": "web", "Meta": {f"m{number}": "x" for number in range(meta)}}

    def look(_: ReadSnapshot) -> tuple[bool, int]:
        return compile_filter(text, Job)(document), threading.get_ident()

    found, thread = await store.read_any(look)
    assert found is (meta == 0)
    assert (thread == threading.get_ident()) is (len(text) < 100 and meta == 0)


LONG = "x[^y]{900}z|x[^w]{900}q"  # compiles to 14,000 instructions


@pytest.fixture
def compiled() -> Iterator[Callable[[str], object]]:
    """Yield a function that compiles a pattern; begin and end without compiled patterns."""
    regexp._compile.cache_clear()
    yield regexp.pattern_error
    regexp._compile.cache_clear()


@pytest.mark.parametrize(
    ("pattern", "value", "is_compiled", "on_loop"),
    [
        ("^x", "x" * 100, True, True),
        ("^x", "x" * 100_000, True, False),  # a long value
        (LONG, "x", True, True),
        (LONG, "x" * 20, True, False),  # a large pattern
        ("x{5}", "xxxxx", False, False),  # a repetition can take long to compile
        ("^x", "x" * 100, False, True),
    ],
)
async def test_a_costly_pattern_is_searched_in_a_thread(
    store: Store,
    compiled: Callable[[str], object],
    pattern: str,
    value: str,
    is_compiled: bool,
    on_loop: bool,
) -> None:
    compiled("x")  # imports the library
    if is_compiled:
        compiled(pattern)

    def look(_: ReadSnapshot) -> int:
        compile_filter(f"Meta.a matches `{pattern}`", Job)({"Meta": {"a": value}})
        return threading.get_ident()

    assert (await store.read_any(look) == threading.get_ident()) is on_loop


async def test_a_pattern_is_not_compiled_on_the_event_loop(
    store: Store, compiled: Callable[[str], object]
) -> None:
    compiled("x")
    with pytest.raises(LongRead):
        store.read_short(lambda _: compiled(LONG))
    assert regexp._compile.cache_info().currsize == 1
    store.read(lambda _: compiled(LONG))
    assert regexp._compile.cache_info().currsize == 2


async def test_thread_yields_to_the_event_loop_after_each_share(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[int]()
    monkeypatch.setattr(loop_share.time, "sleep", lambda _: turns.append(threading.get_ident()))

    def long(_: ReadSnapshot) -> int:
        for _ in range(10):
            spend(SHARE)
        return threading.get_ident()

    thread = await store.read_long(long)
    assert set(turns) == {thread}
    assert 5 <= len(turns) <= 10
    turns.clear()
    store.read(long)
    assert turns == []
