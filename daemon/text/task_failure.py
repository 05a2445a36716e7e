"""Text of a task error: the cause in one sentence, and the last lines of its output."""

from storage.records.failure import TaskError

_TERMINATED = "Terminated"
_SHOWN = 5  # last lines of the standard error


def sentence(error: TaskError | None) -> str:
    """Format an error as one sentence without a full stop; without an error, as an empty text."""
    if error is None:
        return ""
    again = f" (restarted {error.restarts} times)" if error.restarts > 1 else ""
    if error.kind != _TERMINATED:
        return f'task "{error.task}": {error.message}{again}'
    if error.oom_killed:
        how = "was killed because it used more memory than its limit"
    elif error.signal:
        how = f"was ended by {error.signal}"
    else:
        how = f"exited with code {error.exit_code}"
    said = f": {error.message}" if error.message else ""
    return f'task "{error.task}" {how}{said}{again}'


def last_lines(error: TaskError, most: int = _SHOWN) -> list[str]:
    """Return the last lines that an attempt wrote to its standard error."""
    return error.stderr.splitlines()[-most:]
