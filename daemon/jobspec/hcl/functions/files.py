"""File functions. They work only in the CLI, which has access to the user's files."""

from functools import partial

from daemon.jobspec.hcl.functions.registry import text
from daemon.jobspec.hcl.scope import FunctionEnvironment, FunctionFault, HclFunction
from daemon.jobspec.hcl.values import Value

_OF_ONE = ("abspath", "basename", "dirname", "file", "filebase64", "fileexists", "pathexpand")


def _run(name: str, values: tuple[Value, ...], outside: FunctionEnvironment) -> Value:
    if outside.files is None:
        raise FunctionFault("filesystem function disabled")
    return outside.files(name, values)


FUNCTIONS: dict[str, HclFunction] = {
    name: HclFunction(parameters=(text("path"),), run=partial(_run, name)) for name in _OF_ONE
}
FUNCTIONS["fileset"] = HclFunction(
    parameters=(text("path"), text("pattern")), run=partial(_run, "fileset")
)
