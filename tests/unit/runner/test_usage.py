"""What is used between two looks."""

import os

import pytest

from daemon.runner.usage import Look, Sample, memory, of_task, sample
from storage.records.base import SECOND

MHZ = 2000.0


def look(at: int, **of: Sample) -> Look:
    return Look(at * SECOND, {int(pid.lstrip("p")): one for pid, one in of.items()})


def process(user: int, system: int, started: int = 1, rss: int = 0) -> Sample:
    return Sample(user * SECOND, system * SECOND, rss, 0, started)


def test_percent_is_of_one_processor_since_the_last_look() -> None:
    used = of_task(look(10, p1=process(5, 1)), look(20, p1=process(10, 6)), MHZ)
    cpu = used.resource_usage.cpu_stats
    assert (cpu.user_mode, cpu.system_mode, cpu.percent) == (50.0, 50.0, 100.0)
    assert cpu.total_ticks == MHZ


def test_a_process_that_is_new_counts_from_its_start() -> None:
    used = of_task(look(10), look(20, p1=process(1, 0)), MHZ)
    assert used.resource_usage.cpu_stats.percent == 10.0


def test_a_number_that_was_given_again_is_another_process() -> None:
    used = of_task(look(10, p1=process(9, 9)), look(20, p1=process(1, 0, started=2)), MHZ)
    assert used.pids["1"].cpu_stats.percent == 10.0


def test_all_processes_of_a_task_are_added_up() -> None:
    now = look(20, p1=process(1, 0, rss=5), p2=process(2, 0, rss=6))
    used = of_task(look(10), now, MHZ)
    assert used.resource_usage.cpu_stats.percent == pytest.approx(30.0)
    assert used.resource_usage.memory_stats.rss == 11


def test_two_questions_at_the_same_moment_do_not_divide_by_nothing() -> None:
    here = look(10, p1=process(1, 1))
    assert of_task(here, here, MHZ).resource_usage.cpu_stats.percent == 0.0


def test_a_process_is_looked_at_and_one_that_is_gone_is_not() -> None:
    found = sample(os.getpid())
    assert found is not None
    assert found.rss > 1_000_000
    assert sample(2**22 + 1) is None


def test_what_is_available_is_not_used() -> None:
    text = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 40 kB\n"
    found = memory(text)
    assert (found.total, found.used, found.free) == (102400, 61440, 10240)
