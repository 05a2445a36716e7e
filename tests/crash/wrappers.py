"""Wrappers around calls with effects, which can kill the process before or after the call.

Steward's code contains no hooks for the wrappers. They wrap functions of the interpreter. A call
belongs to the first line of Steward in its stack.
"""

import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from storage import writer
from storage.store import Store
from tests.crash.point_counters import AFTER, BEFORE, PointCounters
from tests.crash.points import EFFECTS, ROOT

_OURS = (f"{ROOT}/daemon/", f"{ROOT}/storage/")


class Wrappers:
    """Installs a wrapper for every effect, and finds the point of a call by its stack."""

    def __init__(self, counters: PointCounters, kill: Callable[[], object]) -> None:
        self._counters, self._kill = counters, kill
        self._within: ContextVar[bool] = ContextVar("within", default=False)
        self._user = os.getuid()

    def come_to(self, name: str, side: int) -> None:
        """Count a visit, and kill the process if scheduled.

        A launcher operation that runs as another user cannot kill its launcher, so its visits do
        not count.
        """
        if os.getuid() == self._user and self._counters.note(name, side):
            self._kill()

    @contextmanager
    def passing(self, effect: str) -> Iterator[None]:
        """Pass a point. Nested effects inside the interpreter are not separate points."""
        name = "" if self._within.get() else f"{_who_asks()}:{effect}"
        if not name:
            yield
            return
        token = self._within.set(True)
        try:
            self.come_to(name, BEFORE)
            yield
        finally:  # also after an error, such as killing an ended process
            self.come_to(name, AFTER)
            self._within.reset(token)

    def plain(self, owner: object, name: str, effect: str) -> None:
        """Replace the function `name` of `owner` by a wrapper that visits the effect's points."""
        inner = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.passing(effect):
                return inner(*args, **kwargs)

        setattr(owner, name, wrapper)

    def later(self, owner: object, name: str, effect: str) -> None:
        """Replace the coroutine function `name` of `owner` by a wrapper that visits the points."""
        inner: Callable[..., Awaitable[Any]] = getattr(owner, name)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            point = f"{_who_asks()}:{effect}"
            self.come_to(point, BEFORE)
            result = await inner(*args, **kwargs)
            self.come_to(point, AFTER)
            return result

        setattr(owner, name, wrapper)

    def talk(self, owner: object, name: str, effect: str) -> None:
        """Wrap an HTTP exchange; the points are before the request and when the response begins."""
        inner = getattr(owner, name)

        @asynccontextmanager
        async def talking(point: str, *args: Any, **kwargs: Any) -> Any:
            self.come_to(point, BEFORE)
            async with inner(*args, **kwargs) as answer:
                self.come_to(point, AFTER)
                yield answer

        setattr(
            owner, name, lambda *args, **kwargs: talking(f"{_who_asks()}:{effect}", *args, **kwargs)
        )

    def everything(self) -> None:
        """Wrap all calls that `points.EFFECTS` names."""
        for owner in (os, shutil, subprocess, signal):
            for name in EFFECTS[owner.__name__]:
                self.plain(owner, name, f"{owner.__name__}.{name}")
        for name in EFFECTS["Path"]:
            self.plain(pathlib.Path, name, f"Path.{name}")
        self._commits()
        import httpx
        import trio

        from daemon.net import http_client

        self.later(trio.lowlevel, "open_process", "trio.lowlevel.open_process")
        self.later(http_client, "connect", "http_client.connect")
        self.talk(http_client, "send_request", "http_client.send_request")
        self.talk(httpx.AsyncClient, "stream", "AsyncClient.stream")

    def _commits(self) -> None:
        """Wrap writes to a store: a commit is a point of each caller whose write it contains."""
        carried: list[str] = []
        self._connections(carried)
        self._writes(carried)

    def _connections(self, carried: list[str]) -> None:
        wrappers = self

        class Connection(sqlite3.Connection):
            is_writer = False

            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                if sql != "COMMIT":
                    return super().execute(sql, *args)
                names = [*carried] if self.is_writer else [f"{_who_asks()}:Connection.COMMIT"]
                for name in names:
                    wrappers.come_to(name, BEFORE)
                cursor = super().execute(sql, *args)
                for name in names:
                    wrappers.come_to(name, AFTER)
                return cursor

            def executescript(self, *args: Any) -> sqlite3.Cursor:
                with wrappers.passing("Connection.executescript"):
                    return super().executescript(*args)

            def backup(self, *args: Any, **kwargs: Any) -> None:
                with wrappers.passing("Connection.backup"):
                    super().backup(*args, **kwargs)

        sqlite3.connect = partial(sqlite3.connect, factory=Connection)

    def _writes(self, carried: list[str]) -> None:
        asking: ContextVar[str] = ContextVar("asking", default="")
        write, pending, commit = Store.write, writer._Pending.__init__, writer.Writer._commit

        async def named(name: str, store: Store, work: Any, **named: Any) -> Any:
            token = asking.set(name)
            try:
                return await write(store, work, **named)
            finally:
                asking.reset(token)

        def noted(item: Any, work: Any, **named: Any) -> None:
            pending(item, work, **named)
            item.point = asking.get()

        async def counted(self: Any, batch: list[Any]) -> None:
            self._connection.is_writer = True
            carried[:] = [item.point for item in batch]
            try:
                await commit(self, batch)
            finally:
                carried.clear()

        Store.write = lambda store, work, **fields: named(
            f"{_who_asks()}:Store.write", store, work, **fields
        )
        writer._Pending.__init__ = noted
        writer.Writer._commit = counted


def _who_asks() -> str:
    """Return Steward's module and function from which the call comes."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OURS):
            return f"{code.co_filename[len(str(ROOT)) + 1 :]}:{_plain(code.co_qualname)}"
        frame = frame.f_back
    return ""


def _plain(qualname: str) -> str:
    """Return the name of a function, also for a lambda or a comprehension inside it."""
    parts = qualname.split(".")
    while parts[-1] in (
        "<lambda>",
        "<listcomp>",
        "<genexpr>",
        "<dictcomp>",
        "<setcomp>",
        "<locals>",
    ):
        parts.pop()
    return ".".join(parts)
