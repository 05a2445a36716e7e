"""Functions on files. They work where the file of the user is: in the command line."""

from functools import partial

from daemon.jobspec.hcl.functions.define import text
from daemon.jobspec.hcl.scope import Function, FunctionFault, Outside
from daemon.jobspec.hcl.values import Value

_OF_ONE = ("abspath", "basename", "dirname", "file", "filebase64", "fileexists", "pathexpand")


def _run(name: str, values: tuple[Value, ...], outside: Outside) -> Value:
    if outside.files is None:
        raise FunctionFault("filesystem function disabled")
    return outside.files(name, values)


FUNCTIONS: dict[str, Function] = {
    name: Function(parameters=(text("path"),), run=partial(_run, name)) for name in _OF_ONE
}
FUNCTIONS["fileset"] = Function(
    parameters=(text("path"), text("pattern")), run=partial(_run, "fileset")
)
