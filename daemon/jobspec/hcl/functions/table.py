"""The table of all functions of the language, by name."""

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
from daemon.jobspec.hcl.functions.registry import per_character, per_part
from daemon.jobspec.hcl.functions.registry import text as text_parameter
from daemon.jobspec.hcl.scope import FunctionEnvironment, HclFunction, Parameter
from daemon.jobspec.hcl.values import ANY, Value


def _lazy_function(
    name: str, parameter: Parameter, cost: Callable[[tuple[Value, ...]], int]
) -> HclFunction:
    """Return a YAML function, which imports its library at the first call.

    `cost` computes the cost of a call from its arguments.
    """

    def run(values: tuple[Value, ...], _: FunctionEnvironment) -> Value:
        from daemon.jobspec.hcl.functions import yaml_codec

        return yaml_codec.FUNCTIONS[name](values[0])

    return HclFunction(parameters=(parameter,), run=run, cost=cost)


FUNCTIONS: Mapping[str, HclFunction] = MappingProxyType(
    {
        **SPECIAL,
        **text.FUNCTIONS,
        **numeric.FUNCTIONS,
        **sequences.FUNCTIONS,
        **encoding.FUNCTIONS,
        "yamlencode": _lazy_function(
            "yamlencode", Parameter("value", ANY, may_be_null=True), per_part
        ),
        "yamldecode": _lazy_function("yamldecode", text_parameter("src"), per_character),
        **formatting.FUNCTIONS,
        **crypto.FUNCTIONS,
        **network.FUNCTIONS,
        **times.FUNCTIONS,
        **files.FUNCTIONS,
    }
)
