"""Functions that tests run as jobs."""

import os
import signal

import msgspec
from steward_client import task


class Point(msgspec.Struct):
    x: int
    y: int = 0


@task
def move(point: Point, by: int, *, times: int = 1) -> Point:
    return Point(point.x + by * times, point.y)


@task
def divide(a: int, b: int) -> float:
    return a / b


@task
def vanish() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(retries=1, memory_mb=64)
def unencodable() -> object:
    return object()
