"""All functions by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from daemon.jobspec.hcl.evaluate import SPECIAL
from daemon.jobspec.hcl.functions import (
    crypto,
    encoding,
    files,
    formatting,
    network,
    numeric,
    sequences,
    text,
    times,
)
from daemon.jobspec.hcl.functions.define import per_character, per_part
from daemon.jobspec.hcl.functions.define import text as text_parameter
from daemon.jobspec.hcl.scope import Function, Outside, Parameter
from daemon.jobspec.hcl.values import ANY, Value


def _late(name: str, parameter: Parameter, cost: Callable[[tuple[Value, ...]], int]) -> Function:
    """Return a function on YAML, whose library takes a while to import and few files need."""

    def run(values: tuple[Value, ...], _: Outside) -> Value:
        from daemon.jobspec.hcl.functions import yamlform

        return yamlform.FUNCTIONS[name](values[0])

    return Function(parameters=(parameter,), run=run, cost=cost)


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        **SPECIAL,
        **text.FUNCTIONS,
        **numeric.FUNCTIONS,
        **sequences.FUNCTIONS,
        **encoding.FUNCTIONS,
        "yamlencode": _late("yamlencode", Parameter("value", ANY, may_be_null=True), per_part),
        "yamldecode": _late("yamldecode", text_parameter("src"), per_character),
        **formatting.FUNCTIONS,
        **crypto.FUNCTIONS,
        **network.FUNCTIONS,
        **times.FUNCTIONS,
        **files.FUNCTIONS,
    }
)
