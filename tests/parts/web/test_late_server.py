"""The HTTP server is imported in a thread, by the first connection that needs it."""

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.web import connections, late_server
from daemon.web.late_server import STEPS, InstalledPackages, PackagesReplaced, import_steps
from storage.store import Store
from tests.parts.web.test_fast_path import READ, serving, to_its_end

# POST /cold is not a route of the fast path.
COLD = b"POST /cold HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
OWN = ("daemon.", "storage.")


class Imports:
    """An import of the HTTP server under the control of a test."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.faults: list[Exception] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.began = trio.Event()

    def run(self, steps: Sequence[str], check: Callable[[], None]) -> None:
        """Replace `import_steps`."""
        assert steps == STEPS
        self.threads.append(threading.current_thread())
        trio.from_thread.run_sync(self.began.set)
        while not self.goes_on.wait(0.001):
            check()
        if self.faults:
            raise self.faults.pop()


@pytest.fixture
async def imports(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Imports]:
    """Let each start of an HTTP server import it, although it was imported before."""
    controlled = Imports()
    monkeypatch.setattr(late_server, "SERVER", "daemon.web.not_imported")
    monkeypatch.setattr(late_server, "import_steps", controlled.run)
    yield controlled
    controlled.goes_on.set()


async def ask(port: int, request: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        with trio.fail_after(10):
            return await to_its_end(stream)


@pytest.mark.parametrize("lean", [True, False])
async def test_server_is_imported_once_and_in_a_thread(
    store: Store, tmp_path: Path, imports: Imports, *, lean: bool
) -> None:
    async with serving(store, tmp_path, lean=lean) as port:
        first, second = await ask(port, COLD), await ask(port, COLD)
    assert (first[:12], second[:12]) == (b"HTTP/1.1 200", b"HTTP/1.1 200")
    (thread,) = imports.threads
    assert thread is not threading.main_thread()


async def test_fast_path_answers_during_the_import(
    store: Store, tmp_path: Path, imports: Imports
) -> None:
    imports.goes_on.clear()
    answers: list[bytes] = []

    async def ask_cold() -> None:
        answers.append(await ask(port, COLD))

    async with serving(store, tmp_path) as port, trio.open_nursery() as nursery:
        nursery.start_soon(ask_cold)
        nursery.start_soon(ask_cold)
        await imports.began.wait()
        read = await ask(port, READ.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert read.startswith(b"HTTP/1.1 200")
        assert answers == []
        imports.goes_on.set()
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 2
    assert len(imports.threads) == 1


async def test_failed_import_is_reported_and_tried_again(
    store: Store, tmp_path: Path, imports: Imports, caplog: pytest.LogCaptureFixture
) -> None:
    imports.faults.append(OSError(24, "Too many open files"))
    async with serving(store, tmp_path) as port:
        first, second = await ask(port, COLD), await ask(port, COLD)
    assert first.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert first.endswith(b"the HTTP server cannot be imported: [Errno 24] Too many open files\n")
    assert second.startswith(b"HTTP/1.1 200")
    assert "Too many open files" in caplog.text


async def test_shutdown_ends_an_import(
    store: Store, tmp_path: Path, imports: Imports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shutdown cancels the import between two of its steps."""
    imports.goes_on.clear()
    monkeypatch.setattr(connections, "CLOSING", 0)
    with trio.fail_after(10):
        async with serving(store, tmp_path) as port:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(COLD)
            await imports.began.wait()
    assert await to_its_end(stream) == b""
    await stream.aclose()


@pytest.mark.parametrize("lean", [True, False])
async def test_idle_connections_need_no_server(
    store: Store, tmp_path: Path, imports: Imports, *, lean: bool
) -> None:
    async with serving(store, tmp_path, lean=lean) as port:
        silent = await trio.open_tcp_stream("127.0.0.1", port)
        closed = await trio.open_tcp_stream("127.0.0.1", port)
        await closed.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert await to_its_end(silent) == b""
    await silent.aclose()
    assert imports.threads == []


def test_each_step_is_followed_by_a_check() -> None:
    calls: list[str] = []

    def check() -> None:
        calls.append("check")
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        import_steps(["json", "shlex", "no.such.module"], check)
    assert len(calls) == 3


def test_last_steps_import_only_modules_of_steward() -> None:
    """The steps before them name every library that the HTTP server uses."""
    code = (
        "import sys, importlib\n"
        "import daemon.web.server\n"
        "from daemon.web.late_server import STEPS\n"
        "for step in STEPS:\n"
        "    before = set(sys.modules)\n"
        "    importlib.import_module(step)\n"
        "    print(step, *sorted(set(sys.modules) - before))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    added = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}
    assert tuple(added) == STEPS
    assert added[late_server.SERVER]
    assert [name for name in added[late_server.SERVER] if not name.startswith(OWN)] == []
    assert max(map(len, added.values())) <= 60  # modules of one step


def package(directory: Path, text: str = "") -> Path:
    file = directory / "latepackage" / "__init__.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_replaced_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade replaces each file with a new one, even if its text and its time are the same."""
    file = package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    packages = InstalledPackages(["latepackage.module", "json.decoder"])
    packages.check()
    other = file.with_name("other")
    other.touch()
    os.utime(other, ns=(0, file.stat().st_mtime_ns))
    other.replace(file)
    with pytest.raises(PackagesReplaced, match="latepackage were replaced"):
        packages.check()


def test_removed_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    packages = InstalledPackages(["latepackage"])
    file.unlink()
    with pytest.raises(PackagesReplaced):
        packages.check()


def test_missing_package_prevents_the_start() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package is not installed"):
        InstalledPackages(["no_such_package.module"])
