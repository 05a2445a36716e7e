"""The program that runs in the task of a remote call: it calls a function and stores the result.

    python -m steward_client.call MODULE:FUNCTION

The arguments are in `local/arguments.json`; the result is written to `local/result.json`. The exit
status is 0 if the function returned a result, and 1 if it raised an exception.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from steward_client.functions import (
    ARGUMENTS,
    RESULT,
    Arguments,
    Failure,
    Outcome,
    RemoteFunction,
)

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def call(function: Callable[..., object], arguments: Arguments) -> Outcome:
    """Call a function with converted arguments; return the result or the exception.

    The type annotations of the function determine the types of the arguments.
    """
    try:
        bound = inspect.signature(function).bind(*arguments.args, **arguments.kwargs)
        hints = get_type_hints(function)
        for name, value in bound.arguments.items():
            if name in hints and bound.signature.parameters[name].kind not in _MANY:
                bound.arguments[name] = msgspec.convert(value, hints[name])
        value = msgspec.json.encode(function(*bound.args, **bound.kwargs))
    except Exception as error:  # the exception is the result of the call
        return Outcome(failure=_failure(error))
    return Outcome(value=msgspec.Raw(value))


def _failure(error: Exception) -> Failure:
    text = "".join(traceback.format_exception(error))
    return Failure(type=type(error).__name__, message=str(error), traceback=text)


def find(name: str) -> Callable[..., Any]:
    """Return the undecorated function that `MODULE:FUNCTION` names."""
    module, _, qualified = name.partition(":")
    part_of_module: object = importlib.import_module(module)
    for part in qualified.split("."):
        part_of_module = getattr(part_of_module, part)
    if not isinstance(part_of_module, RemoteFunction):
        raise TypeError(f"{name} has no @task decorator: add it to the function")
    return part_of_module.function


def main() -> int:
    """Call the function given on the command line; return the exit status."""
    directory = Path(os.environ["NOMAD_TASK_DIR"])
    arguments = msgspec.json.decode((directory / ARGUMENTS).read_bytes(), type=Arguments)
    outcome = call(find(sys.argv[1]), arguments)
    unfinished = directory / f"{RESULT}.new"
    unfinished.write_bytes(msgspec.json.encode(outcome))
    unfinished.replace(directory / RESULT)
    if outcome.failure is None:
        return 0
    sys.stderr.write(outcome.failure.traceback)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
