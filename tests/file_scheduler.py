"""A scheduler of test files for pytest-xdist that continues when a worker ends.

pytest-xdist 3.8 puts the finished files of an ended worker back into its queue. The worker that
gets such a file has no test to report, so it receives no other file, and the run never ends.
pytest-xdist also repeats the test during which the worker ended.
"""

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FileScheduler(LoadFileScheduling):
    """Gives each worker whole files; other workers run the remaining tests of an ended worker."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a worker ran when it ended, or None if it had no more tests."""
        files = self.assigned_work.pop(node)
        unfinished = {path: tests for path, tests in files.items() if not all(tests.values())}
        if not unfinished:
            return None
        tests = next(iter(unfinished.values()))
        ended_by: str = next(name for name, is_finished in tests.items() if not is_finished)
        tests[ended_by] = True  # pytest-xdist reports it as failed
        self.workqueue.update(
            {path: tests for path, tests in unfinished.items() if not all(tests.values())}
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_by
